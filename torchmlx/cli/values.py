"""The values that flags take: each function parses one and says in one line what is wrong.

argparse puts the flag's name before the message: "argument --top-p: must be ..., not '7'".
"""

import argparse
import json
import math
import re
from collections.abc import Callable
from typing import TypeVar

Number = TypeVar("Number", int, float)

DTYPES = ("float32", "float16", "bfloat16")
DEVICES = ("cpu", "mps", "cuda")


def _checked(
    parse: Callable[[str], Number], holds: Callable[[Number], bool], wanted: str
) -> Callable[[str], Number]:
    def value(text: str) -> Number:
        try:
            number = parse(text)
        except ValueError:
            number = None
        if number is None or not math.isfinite(number) or not holds(number):
            raise argparse.ArgumentTypeError(f"must be {wanted}, not {text!r}")
        return number

    return value


temperature = _checked(float, lambda x: 0 <= x <= 1e6, "from 0 (greedy) to 1e6")
top_p = _checked(float, lambda x: 0 <= x <= 1, "between 0 (greedy) and 1 (keeps all)")
top_k = _checked(int, lambda x: x >= 0, "a whole number of at least 0 (0 keeps all)")
min_p = _checked(float, lambda x: 0 <= x <= 1, "between 0 and 1 (0 keeps all)")
repetition_penalty = _checked(float, lambda x: 1e-6 <= x <= 1e6, "1e-6 to 1e6 (1 is no penalty)")
max_tokens = _checked(int, lambda x: x >= 1, "a whole number of at least 1")
draft_tokens = _checked(int, lambda x: 1 <= x <= 15, "a whole number from 1 to 15")
port = _checked(int, lambda x: 0 <= x < 65536, "a port from 0 to 65535")
seconds = _checked(float, lambda x: x > 0, "a number of seconds above 0")
gibibytes = _checked(float, lambda x: x >= 0, "a number of GiB of at least 0")
frames = _checked(int, lambda x: x >= 1, "a whole number of at least 1")
fps = _checked(float, lambda x: 0 < x <= 1000, "frames a second, above 0 and at most 1000")
pixels = _checked(int, lambda x: x >= 1, "a number of pixels of at least 1")
seed = _checked(int, lambda x: 0 <= x < 2**64, "a whole number from 0 to 2**64 - 1")


def memory(text: str) -> int:
    """Bytes of `4GiB`, `500MB`, `2.5G`; a unit is needed, since a bare 4 could be any."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMGT])(i?)B?", text.strip(), re.IGNORECASE)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"must be a size as 4GiB or 500MB, not {text!r}")
    base = 1000 if not found[3] and text.strip()[-1] in "bB" else 1024
    return int(float(found[1]) * base ** ("KMGT".index(found[2].upper()) + 1))


def stop(text: str) -> str:
    """A stop string: the empty one would stop before the first token."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def template_variable(text: str) -> tuple[str, object]:
    """NAME=VALUE for a chat template; VALUE is JSON (true, 3) where it can be, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
