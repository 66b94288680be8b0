"""Short calls of many sizes from several threads, while the pool changes its size and rests.

`python -m tests.kernels.cpu.stress --seconds 60 --threads 3`. Ends with 1 for a wrong value, a call
that does not come back, or a pool that is busy while nobody calls.
"""

import argparse
import faulthandler
import os
import random
import sys
import threading
import time
from itertools import count

# Threads that call, seconds that they call for before a pause, and what a pause lasts.
CALLERS, WORK, REST = 3, 1.0, 0.4

# Seconds after which a call is lost, and the share of a pause that may be spent on a processor.
LOST, BUSY = 60, 0.1


def jobs():
    """Functions without arguments that compute something and raise if it is wrong."""
    import mlx.core as mx
    import numpy as np

    from torchmlx.kernels import registry
    from torchmlx.kernels.dispatch import use

    from .test_every_kernel import KERNELS, SMALL, call, same, size

    def of(kernel, case, dtype):
        arrays = case.make(dtype)
        with use("cpu"):
            want = call(kernel, case, arrays)
        mx.eval(arrays, want)
        return lambda: same(want, call(kernel, case, arrays), dtype)

    for kernel in KERNELS:
        for i, case in enumerate(kernel.cases):
            if size(case, kernel) <= SMALL:
                yield of(kernel, case, ("float32", "bfloat16")[i % 2])
    # Whole numbers, whose products have no rounding.
    whole = mx.array(np.random.default_rng(0).integers(-4, 5, (300, 300)).astype(np.float32))
    exact, matmul = np.array(whole).astype(int), registry.get("matmul").function

    def product():
        m, n, k = (random.randint(1, 300) for _ in range(3))
        got = np.array(matmul(whole[:m, :k], whole[:k, :n]))
        np.testing.assert_array_equal(got, exact[:m, :k] @ exact[:k, :n])

    yield from [product] * 40


class Callers:
    """Threads that do jobs until they are told to stop."""

    def __init__(self, choices):
        self.choices, self.stop = choices, threading.Event()
        self.calls, self.wrong = 0, []
        self.threads = [threading.Thread(target=self._call, daemon=True) for _ in range(CALLERS)]

    def _call(self):
        import mlx.core as mx

        try:
            with mx.stream(mx.new_stream(mx.cpu)):
                for done in count(1):
                    random.choice(self.choices)()
                    self.calls += 1
                    if self.stop.is_set():
                        return
                    if done % 20 == 0:
                        time.sleep(random.uniform(0, 0.003))  # long enough for the pool to sleep
        except BaseException as error:
            self.wrong.append(error)
        finally:
            mx.clear_streams()


def resize(module, threads: int, until: float) -> None:
    """Other numbers of threads at times, from this thread."""
    while time.monotonic() < until:
        module.set_threads(random.choice([threads, threads, 1, 2, 3, 5, 8]))
        time.sleep(random.uniform(0, 0.02))
    module.set_threads(threads)


def main() -> int:
    """Work and rest by turns, and say what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one-core", action="store_true", help="all threads on one processor")
    asked = parser.parse_args()
    if asked.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    random.seed(asked.seed)

    from torchmlx.kernels import native

    module, reason = native.load()
    if module is None:
        raise SystemExit(reason)
    module.set_threads(asked.threads)
    choices = list(jobs())
    end, calls, busy = time.monotonic() + asked.seconds, 0, []
    while time.monotonic() < end:
        faulthandler.dump_traceback_later(LOST, exit=True)  # names the calls that are lost
        callers = Callers(choices)
        for thread in callers.threads:
            thread.start()
        resize(module, asked.threads, time.monotonic() + WORK)
        callers.stop.set()
        for thread in callers.threads:
            thread.join(LOST)
        faulthandler.cancel_dump_traceback_later()
        calls += callers.calls
        if callers.wrong:
            print(f"after {calls} calls: {callers.wrong[0]!r}")
            return 1
        time.sleep(0.05)
        spent, began = time.process_time(), time.monotonic()
        time.sleep(REST)
        busy.append((time.process_time() - spent) / (time.monotonic() - began))
    print(f"{calls} calls, {asked.threads} threads, busy at rest {max(busy):.1%} at most")
    return 1 if max(busy) > BUSY else 0


if __name__ == "__main__":
    sys.exit(main())
