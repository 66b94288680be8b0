"""What MLX would hand to a Mac: its generated Metal source and geometry, recorded anywhere.

`mx.export_function` with a callback describes each node of the graph that a function builds; for
a custom kernel that includes the complete Metal source. Seen with mlx 0.32.4 (mlx#3650). It
records no `init_value`, and a launch's values are not computed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from .kernel import bare

MATH_MODES = ("safe", "relaxed", "fast")


@dataclass(frozen=True)
class Recorded:
    """One recorded dispatch.

    name: the mangled name, unique for template arguments, dtypes and address spaces.
    source: header, signature, body and template instantiation.
    inputs, outputs: (shape, dtype) in the order of the signature, before shapes and attributes.
    """

    name: str
    source: str
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    inputs: tuple[tuple[tuple[int, ...], mx.Dtype], ...]
    outputs: tuple[tuple[tuple[int, ...], mx.Dtype], ...]
    row_contiguous: bool
    math_mode: str

    @property
    def parameters(self) -> tuple[str, ...]:
        """The signature's parameters as MLX wrote them, without buffer attributes."""
        match = re.search(r"\[\[kernel\]\] void \w+\(\n(.*?)\) \{\n", self.source, re.DOTALL)
        if match is None:
            raise ValueError(f"no signature in the source of {self.name}")
        lines = match.group(1).split(",\n")
        return tuple(re.sub(r"\s*\[\[.*?\]\]", "", line).strip() for line in lines)

    @property
    def instantiation(self) -> str:
        """The template arguments that MLX instantiates, "" for a plain function."""
        match = re.search(r"\[\[kernel\]\] decltype\(\w+<(.*?)>\)", self.source)
        return match.group(1) if match else ""


def record(function: Callable[..., Any], *arrays: mx.array | None) -> list[Recorded]:
    """The custom kernels in the graph that `function` builds for `arrays`, in order.

    Where there is no Metal GPU, record under `dispatch.use("metal")`.
    """
    nodes: list[dict[str, Any]] = []

    def call(*present):
        # MLX exports no None.
        rest = iter(present)
        return function(*(None if array is None else next(rest) for array in arrays))

    with bare():
        mx.export_function(nodes.append, call, *(a for a in arrays if a is not None))
    return [_recorded(node) for node in nodes if node.get("name") == "CustomKernel"]


def _recorded(node: dict[str, Any]) -> Recorded:
    arguments = node["arguments"]
    return Recorded(
        name=arguments[0],
        source=arguments[1],
        grid=tuple(arguments[2:5]),
        threadgroup=tuple(arguments[5:8]),
        inputs=tuple((tuple(shape), dtype) for _, shape, dtype in node["inputs"]),
        outputs=tuple((tuple(shape), dtype) for _, shape, dtype in node["outputs"]),
        row_contiguous=arguments[9],
        math_mode=MATH_MODES[arguments[-1]],
    )
