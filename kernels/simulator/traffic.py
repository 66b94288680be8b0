"""The memory traffic of our kernels' cases as plain rows, held to the bars of issue #3.

Each kernel file names its `bar`. A case is judged where its figures mean something: in a call that
moves less than SMALL_CALL offsets, scales and the ends of lines weigh too much, and 128
neighbouring bytes lie in two lines wherever rows do not begin with one, whoever reads them. What a
product of a K below SHORT_K reads with its results, a bias or scales, weighs as much as its tiles.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..dispatch import trace
from ..kernel import Kernel
from ..spec import Case, Tiled
from . import published as mlx
from .result import Result, Traffic
from .simulate import simulated

SMALL_CALL = 40 << 10  # bytes; a token's rms_norm in Qwen3.6 moves as many
SHORT_K = 128
LINE = 128
COALESCED = 0.9  # of the loads, at least
TILED = 1.1  # requested bytes over what the tiles ask for, at most


def traffic(kernel: Kernel, case: Case, dtype: str) -> dict[str, Any]:
    """Run a case and count what it asks of memory, over all its launches.

    {"kernel", "case", "dtype", "variant", and the fields of `counters`; "tile_ratio": requested
    bytes over what its tiles ask for, None where it has none; "bar": what that may be, else what
    cached_ratio may, None where there is no bar; "missed": what is beyond a bar, in words;
    "unjudged": why a bar does not count here, "" where all do}.
    """
    arrays = case.make(dtype)
    minimum = kernel.cost(*arrays, **case.keywords).bytes
    with simulated(mode="fast", traffic=True, strict=False) as seen, trace() as calls:
        kernel.function(*arrays, **case.keywords)
    metal, variant = kernel.metal, calls[0].variant
    bar = metal and metal.bar(metal.problem(*arrays, **case.keywords), variant)
    counted = counters(seen.results, minimum)
    ratio = None
    if isinstance(bar, Tiled):
        ratio = counted["requested"] / bar.bytes
        bar = TILED if bar.k >= SHORT_K else None
    names = {"kernel": kernel.name, "case": case.label, "dtype": dtype, "variant": variant}
    row = {**names, **counted, "tile_ratio": ratio, "bar": bar}
    return {**row, **_judged(row, _whole_lines(case, arrays))}


def counters(results: Sequence[Result], minimum: int) -> dict[str, Any]:
    """The counts of launches one after the other.

    {"minimum": bytes that the call must move, "requested" and "cached": bytes asked for and bytes
    through the cache model, "requested_ratio" and "cached_ratio": the same over the minimum,
    "coalesced": share of the loads, "launches", "threadgroups", "threads", "barriers",
    "most_loads", "most_phases"}; see `Traffic`.
    """
    total = Traffic.total(result.traffic for result in results if result.traffic)
    return {
        "minimum": minimum,
        "requested": total.requested,
        "cached": total.cached,
        "requested_ratio": total.requested / max(minimum, 1),
        "cached_ratio": total.cached / max(minimum, 1),
        "coalesced": total.coalesced_share,
        "launches": len(results),
        "threadgroups": sum(result.threadgroups for result in results),
        "threads": sum(result.threads for result in results),
        "barriers": sum(result.barriers for result in results),
        "most_loads": total.most_loads,
        "most_phases": total.most_phases,
    }


def published(kernel: Kernel, case: Case, dtype: str) -> dict[str, Any] | None:
    """The counters of MLX's own kernel for a case of softmax or gemv, as a row that nobody judges.

    None where MLX has none for it: other kernels, other axes, several rows of x. A bias is left
    out. Raises published.NotFetched.
    """
    options = {"mode": "fast", "traffic": True}
    x, *others = case.make(dtype)
    if kernel.name == "softmax" and case.keywords["axis"] == x.ndim - 1:
        result = mlx.softmax(x.reshape(-1, x.shape[-1]), **options)
        minimum = 2 * x.nbytes
    elif kernel.name == "gemv" and x.size == x.shape[-1]:
        result = mlx.gemv(others[0], x.reshape(-1), **options)
        minimum = x.nbytes + others[0].nbytes + others[0].shape[0] * x.itemsize
    else:
        return None
    names = {"kernel": f"mlx {kernel.name}", "case": case.label, "dtype": dtype, "variant": ""}
    verdict = {"tile_ratio": None, "bar": None, "missed": [], "unjudged": "for comparison"}
    return {**names, **counters([result], minimum), **verdict}


def _whole_lines(case: Case, arrays: Sequence[mx.array | None]) -> bool:
    """Whether the rows, as they lie in memory, all begin with a line."""
    for spec, x in zip(case.arrays.values(), arrays, strict=True):
        if spec is None or x is None or x.ndim < 2:
            continue
        row = x.shape[-2 if spec.layout == "transposed" else -1] * x.itemsize
        if row % LINE or spec.layout in ("offset", "strided"):
            return False
    return True


def _judged(row: dict[str, Any], whole_lines: bool) -> dict[str, Any]:
    """{"missed", "unjudged"}"""
    if row["minimum"] < SMALL_CALL:
        return {"missed": [], "unjudged": "small"}
    missed, bar = [], row["bar"]
    name = "cached / minimum" if row["tile_ratio"] is None else "requested / tiles"
    figure = row["cached_ratio"] if row["tile_ratio"] is None else row["tile_ratio"]
    if bar is not None and figure > bar:
        missed.append(f"{name} {figure:.2f} > {bar:g}")
    if whole_lines and row["coalesced"] < COALESCED:
        missed.append(f"coalesced {row['coalesced']:.0%} < {COALESCED:.0%}")
    return {"missed": missed, "unjudged": "" if whole_lines else "ragged"}
