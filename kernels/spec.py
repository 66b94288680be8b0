"""What a kernel file is made of, as plain data: Metal programs and launches, test cases, costs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

# Metal's limit for static threadgroup memory. Beyond it MLX once gave silent wrong results
# (mlx#2205), so `Launch` refuses.
THREADGROUP_BYTES = 32_768

# The pipeline's own limit depends on the kernel and the chip (896 seen on an M2 Ultra,
# published, not measured by us), so launches stay well below it.
THREADGROUP_THREADS = 512

# What `Metal.choose` returns for a problem that MLX's own operations serve better.
FALLBACK = "fallback"

# Bytes through the simulator's cache over the least that a call must move, for a program that
# reads everything once (issue #3).
STREAMING = 1.05


@dataclass(frozen=True)
class Chip:
    """An Apple GPU as MLX names it, for example Chip("Apple M3 Ultra", "applegpu_g15d")."""

    name: str
    architecture: str

    @staticmethod
    @lru_cache
    def here() -> "Chip":
        """This machine's GPU; without one, `OLDEST`, so that a policy can be asked anywhere."""
        if not mx.metal.is_available():
            return OLDEST
        info = mx.device_info(mx.Device(mx.gpu))
        return Chip(str(info["device_name"]), str(info["architecture"]))


OLDEST = Chip("Apple M1", "applegpu_g13g")

Executor = Callable[..., list[mx.array]]
_executor: ContextVar[Executor | None] = ContextVar("executor", default=None)


@contextmanager
def executing(executor: Executor) -> Iterator[None]:
    """Launches in this thread go to `executor(function, **call)` instead of `function(**call)`.

    `function` is what mx.fast.metal_kernel made; this is how the simulator serves our kernels.
    """
    token = _executor.set(executor)
    try:
        yield
    finally:
        _executor.reset(token)


@dataclass(frozen=True)
class Program:
    """The body of one Metal function; MLX generates its signature from the names.

    MLX passes `x_shape`, `x_strides` and the thread attributes only when it finds their names in
    `source` (comments count, `header` does not). Source and header must be ASCII.
    `row_contiguous` False takes inputs in any layout, uncopied: the body reads their strides.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    source: str
    header: str = ""
    row_contiguous: bool = True

    def __post_init__(self) -> None:
        if not (self.source + self.header).isascii():
            raise ValueError(f"{self.name}: Metal source must be ASCII")

    @cached_property
    def function(self) -> Callable[..., list[mx.array]]:
        """The callable that `mx.fast.metal_kernel` makes; IEEE arithmetic, no fast-math."""
        kernel: Any = mx.fast.metal_kernel(
            name=self.name,
            input_names=list(self.inputs),
            output_names=list(self.outputs),
            source=self.source,
            header=self.header,
            ensure_row_contiguous=self.row_contiguous,
            compile_options={"math_mode": "safe"},
        )
        return kernel


@dataclass(frozen=True)
class Launch:
    """One dispatch of a program.

    `inputs` gives the shape as which the program sees each array, `outputs` the shape and dtype
    of each result. `scalars` gives the numbers among the program's inputs (`constant float&` or
    `constant int&`): a template argument would compile anew for each. `grid` counts threads, as
    MLX does, and need not be a multiple of `threadgroup`. `threadgroup_bytes` is what the body
    declares. Raises ValueError for a geometry that no Mac accepts.
    """

    program: Program
    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[tuple[int, ...], mx.Dtype]]
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    template: tuple[tuple[str, int | bool | mx.Dtype], ...] = ()
    threadgroup_bytes: int = 0
    scalars: Mapping[str, int | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name = self.program.name
        if not all(1 <= threads < 2**32 for threads in self.grid):
            raise ValueError(f"{name}: grid {self.grid} is empty or beyond 32 bits")
        if not 1 <= prod(self.threadgroup) <= THREADGROUP_THREADS:
            raise ValueError(f"{name}: threadgroup {self.threadgroup} is over the thread limit")
        if self.threadgroup_bytes > THREADGROUP_BYTES:
            raise ValueError(f"{name}: {self.threadgroup_bytes} bytes of threadgroup memory")

    def run(self, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """The named results of this dispatch on the named `arrays`, lazily."""
        executor = _executor.get()
        function = self.program.function
        results = (partial(executor, function) if executor else function)(
            inputs=[self._input(arrays, name) for name in self.program.inputs],
            template=list(self.template),
            grid=self.grid,
            threadgroup=self.threadgroup,
            output_shapes=[self.outputs[name][0] for name in self.program.outputs],
            output_dtypes=[self.outputs[name][1] for name in self.program.outputs],
        )
        return dict(zip(self.program.outputs, results, strict=True))

    def _input(self, arrays: Mapping[str, mx.array], name: str) -> mx.array | int | float:
        if name in self.scalars:
            return self.scalars[name]
        return _as_shape(arrays[name], self.inputs[name])


def _as_shape(x: mx.array, shape: tuple[int, ...]) -> mx.array:
    return x if x.shape == shape else x.reshape(shape)


@dataclass(frozen=True)
class Tiled:
    """A product [m, k] x [k, n] of which a threadgroup computes bm x bn.

    a, b: bytes of an element of the operands; written: bytes of the result. Rows may come in
    `groups`, of which each ends in a tile of its own.
    """

    m: int
    n: int
    k: int
    bm: int
    bn: int
    a: int
    b: int
    written: int
    groups: int = 1

    @property
    def bytes(self) -> int:
        """What the tiles ask for: k m n (1/bm + 1/bn) elements for whole tiles, and the result."""
        across, down = -(-self.n // self.bn), -(-self.m // self.bm) + self.groups - 1
        return self.k * (self.m * across * self.a + self.n * down * self.b) + self.written


def streaming(problem: Any, variant: str) -> float:
    """The bar of a program that reads everything once."""
    return STREAMING


@dataclass(frozen=True)
class Metal:
    """How a kernel runs on an Apple GPU.

    variants: name -> what it does and when it is the better one.
    problem: (arrays, keywords of the function) -> a hashable description of the call, made from
        shapes and dtypes alone.
    choose: (problem, chip) -> a variant, or FALLBACK for what the program does not cover.
    launch: (problem, variant) -> the dispatches in order; each may read what earlier ones wrote.
        Raises ValueError where the variant cannot serve the problem.
    outputs: the names that make up the function's result, as far as the launches write them.
    bar: (problem, variant) -> what the simulator's traffic is held to: a Tiled for tiled products,
        otherwise bytes through the cache over the least; None where there is no bar.
    """

    variants: Mapping[str, str]
    problem: Callable[..., Any]
    choose: Callable[[Any, Chip], str]
    launch: Callable[[Any, str], Sequence[Launch]]
    outputs: tuple[str, ...] = ("out",)
    bar: Callable[[Any, str], "Tiled | float | None"] = streaming

    def plan(self, problem: Any, variant: str) -> Sequence[Launch]:
        """`launch`, remembered: a decode step asks for the same few problems at every token."""
        return _plan(self.launch, problem, variant)


@lru_cache(maxsize=1024)
def _plan(launch: Callable[[Any, str], Sequence[Launch]], problem: Any, variant: str):
    return tuple(launch(problem, variant))


@dataclass(frozen=True)
class Spec:
    """An array of a case.

    dtype: a name such as "int32"; None stands for each floating dtype that the kernel bounds.
    fill: "normal" (standard normal times `scale`), "specials" (normal, with rows of -inf, and
        rows holding NaN, +inf and -inf), or a function (generator, shape) -> values.
    layout: "contiguous", "transposed" (last two axes swapped in memory), "offset" (starts one
        element into its buffer), "strided" (every other element of a buffer) or "reversed"
        (the first axis runs backwards in memory).
    """

    shape: tuple[int, ...]
    dtype: str | None = None
    fill: str | Callable[[np.random.Generator, tuple[int, ...]], np.ndarray] = "normal"
    layout: str = "contiguous"
    scale: float = 1.0

    def make(self, rng: np.random.Generator, dtype: str) -> mx.array:
        """The array; `dtype` is used where the spec leaves it open."""
        if callable(self.fill):
            values = self.fill(rng, self.shape)
        else:
            values = rng.standard_normal(self.shape, dtype=np.float32) * np.float32(self.scale)
        if self.fill == "specials":
            values = _with_specials(values)
        return _in_layout(mx.array(values).astype(getattr(mx, self.dtype or dtype)), self.layout)


def _name(fill: str | Callable[..., Any]) -> str:
    return fill if isinstance(fill, str) else fill.__name__


def _with_specials(values: np.ndarray) -> np.ndarray:
    """Rows 0..4 of the last axis made special: all -inf; some -inf; +inf; NaN; NaN among -inf."""
    rows = values.reshape(-1, values.shape[-1])
    rows[0] = -np.inf
    rows[1, ::2] = -np.inf
    rows[2, -1] = np.inf
    rows[3, 0] = np.nan
    rows[4] = -np.inf
    rows[4, -1] = np.nan
    return values


def _in_layout(x: mx.array, layout: str) -> mx.array:
    if layout == "transposed":
        return mx.contiguous(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "offset":
        return mx.concatenate([mx.zeros((1,), x.dtype), x.flatten()])[1:].reshape(x.shape)
    if layout == "strided":
        return mx.repeat(x, 2, axis=-1)[..., ::2]
    if layout == "reversed":
        return mx.contiguous(x[::-1])[::-1]
    return x


@dataclass(frozen=True)
class Case:
    """Arguments worth testing and timing: named array specs, keyword arguments, and why.

    An array that the case leaves out although a later one is there is None.
    """

    arrays: Mapping[str, Spec | None]
    why: str
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Short and unique within a kernel, for test names: "x=3x40,axis=0"."""
        shapes = (
            f"{name}={'x'.join(map(str, spec.shape)) or 'scalar'}"
            + f"{'' if spec.fill == 'normal' else ':' + _name(spec.fill)}"
            + f"{'' if spec.layout == 'contiguous' else ':' + spec.layout}"
            for name, spec in self.arrays.items()
            if spec is not None
        )
        return ",".join([*shapes, *(f"{name}={value}" for name, value in self.keywords.items())])

    def make(self, dtype: str, seed: int = 0) -> list[Any]:
        """The arrays (or None) in argument order; the same seed gives the same values."""
        rng = np.random.default_rng(seed)
        return [spec and spec.make(rng, dtype) for spec in self.arrays.values()]

    def outline(self, dtype: str) -> list[Any]:
        """Arrays of the right shapes and dtypes that take no memory unless evaluated, or None."""
        specs = self.arrays.values()
        return [spec and mx.zeros(spec.shape, getattr(mx, spec.dtype or dtype)) for spec in specs]


@dataclass(frozen=True)
class Cost:
    """What a call must at least move and compute: bytes read and written, and flops."""

    bytes: int
    flops: int
