"""Our server's batch against one request after another: tokens a second at 1, 2, 4 and 8 streams.

SmolLM2-135M where it is in the cache (`make demo` fetches it), over the engine, without HTTP.
"""

import queue
import time

from torchmlx.errors import InputError
from torchmlx.models import load
from torchmlx.models.assets import cache_folder
from torchmlx.models.batching import Engine, Request

TOKENS, STREAMS = 48, (1, 2, 4, 8)
# The bar: tokens a second of 8 streams over those of one.
TARGET = 2.0


def main() -> None:
    """Measure and print."""
    folder = cache_folder() / "SmolLM2-135M-Instruct"
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; `torchmlx demo` fetches the model")
    for dtype in ("float32", "bfloat16"):
        engine = Engine(*load(str(folder), dtype=dtype))
        rates = {}
        for count in STREAMS:
            _run(engine, count, 4)  # traces the step for this many rows
            rates[count] = _run(engine, count, TOKENS)
        engine.close()
        shown = ", ".join(f"{count}: {rate:.1f}" for count, rate in rates.items())
        gain = rates[STREAMS[-1]] / rates[1]
        print(f"{dtype}: tokens/s by streams {shown}; gain {gain:.1f}x, target {TARGET}x")


def _run(engine: Engine, count: int, tokens: int) -> float:
    """Tokens a second of `count` requests that begin together, reading prompts included."""
    ends: queue.SimpleQueue = queue.SimpleQueue()
    ids = engine.tokenizer.encode("The sky is blue because")
    began = time.perf_counter()
    for index in range(count):
        request = Request([*ids, 100 + index], _teller(ends), max_tokens=tokens)
        engine.submit(request)
    total = sum(ends.get() for _ in range(count))
    return total / (time.perf_counter() - began)


def _teller(ends: "queue.SimpleQueue[int]"):
    seen = 0

    def emit(event) -> None:
        nonlocal seen
        seen += 1
        if event.finish_reason:
            ends.put(seen)

    return emit
