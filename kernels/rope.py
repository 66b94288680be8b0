"""Rotary position embedding: pairs of a head's dimensions turn by an angle of their position.

Angles come from positions and inverse frequencies, or cosines and sines from tables. A thread turns
one pair of a token, or that pair of several heads: they share the angle.
"""

from typing import Any

import mlx.core as mx
import numpy as np

from .kernel import Kernel
from .spec import Case, Cost, Metal, Spec
from .turning import VARIANTS, Form, axes, choose, launch, problem


def reference(
    x: np.ndarray,
    positions: np.ndarray | None = None,
    frequencies: np.ndarray | None = None,
    cos: np.ndarray | None = None,
    sin: np.ndarray | None = None,
    **form: Any,
) -> np.ndarray:
    """In float64, element by element; only the angles are products in float32, as specified."""
    asked = Form(**form)
    if x.size == 0:
        return np.array(x, np.float64)
    batch, heads, tokens = axes(x.shape, asked.heads_last)
    if frequencies is not None:
        assert positions is not None
        cos, sin = _reference_tables(positions, frequencies, tokens, asked)
    elif positions is not None:
        assert cos is not None and sin is not None
        cos, sin = cos[positions.astype(int)], sin[positions.astype(int)]
    assert cos is not None and sin is not None
    width = cos.shape[-1]
    cos, sin = (table.reshape(-1, 1, tokens, width) for table in (cos, sin))
    out = np.array(x, np.float64).reshape(
        batch, *((tokens, heads) if asked.heads_last else (heads, tokens)), -1
    )
    rows = out.swapaxes(1, 2) if asked.heads_last else out
    turned = rows[..., :width].copy()
    for i in range(width):
        j = i ^ 1 if asked.interleaved else (i + width // 2) % width
        sign = -1.0 if i < j else 1.0
        partner = -sin[..., j] if asked.inverse else sin[..., i]
        with np.errstate(invalid="ignore"):
            rows[..., i] = turned[..., i] * cos[..., i] + sign * partner * turned[..., j]
    return out.reshape(x.shape)


def _reference_tables(
    positions: np.ndarray, frequencies: np.ndarray, tokens: int, form: Form
) -> tuple[np.ndarray, np.ndarray]:
    half = len(frequencies)
    streams = positions.reshape(3 if form.sections else 1, -1, tokens)
    angles = np.zeros((*streams.shape[1:], 2 * half))
    for i in range(2 * half):
        f = i // 2 if form.interleaved else i % half
        used = streams[_stream(f, form)].astype(np.float32) * np.float32(frequencies[f])
        angles[..., i] = used
    return np.cos(angles) * form.scale, np.sin(angles) * form.scale


def _stream(frequency: int, form: Form) -> int:
    """Which position stream a frequency takes: time, height or width."""
    if not form.sections:
        return 0
    first, second, third = form.sections
    if not form.sections_interleaved:
        return 0 if frequency < first else 1 if frequency < first + second else 2
    stream = frequency % 3
    return stream if stream and frequency < 3 * (second if stream == 1 else third) else 0


def fallback(
    x: mx.array,
    positions: mx.array | None = None,
    frequencies: mx.array | None = None,
    cos: mx.array | None = None,
    sin: mx.array | None = None,
    **form: Any,
) -> mx.array:
    """Tables for all tokens, then two products and a sum in float32."""
    asked = Form(**form)
    if x.size == 0:
        return x
    wide = mx.float64 if x.dtype == mx.float64 else mx.float32
    batch, heads, tokens = axes(x.shape, asked.heads_last)
    if frequencies is not None:
        assert positions is not None
        cos, sin = _tables(positions, frequencies, tokens, asked, wide)
    assert cos is not None and sin is not None
    if positions is not None and frequencies is None:
        cos, sin = cos[positions], sin[positions]
    width = cos.shape[-1]
    shape = (-1, tokens, 1, width) if asked.heads_last else (-1, 1, tokens, width)
    cos, sin = (table.reshape(shape) for table in (cos, sin))
    if asked.rounded:
        cos, sin = cos.astype(x.dtype), sin.astype(x.dtype)
    cos, sin = cos.astype(wide), sin.astype(wide)
    full = x.reshape(batch, *((tokens, heads) if asked.heads_last else (heads, tokens)), -1)
    turned = full[..., :width].astype(wide)
    if asked.inverse:
        out = turned * cos - _quarter(turned * sin, asked.interleaved)
    else:
        out = turned * cos + _quarter(turned, asked.interleaved) * sin
    out = out.astype(x.dtype)
    if width < x.shape[-1]:
        out = mx.concatenate([out, full[..., width:]], axis=-1)
    return out.reshape(x.shape)


def _quarter(x: mx.array, interleaved: bool) -> mx.array:
    """Each pair (a, b) of the last axis turned by 90 degrees: (-b, a)."""
    if interleaved:
        pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
        return mx.stack([-pairs[..., 1], pairs[..., 0]], axis=-1).reshape(x.shape)
    half = x.shape[-1] // 2
    return mx.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def _tables(
    positions: mx.array, frequencies: mx.array, tokens: int, form: Form, wide: mx.Dtype
) -> tuple[mx.array, mx.array]:
    """cos and sin [B or 1, L, d]; MLX's CPU has them right to 6e-8 up to 3e7 (0.32.4)."""
    half = frequencies.shape[0]
    used = mx.stop_gradient(frequencies).astype(mx.float32)
    count = 3 if form.sections else 1
    streams = positions.reshape(count, positions.size // (count * tokens), tokens, 1)
    angles = streams.astype(mx.float32) * used
    chosen = angles[0]
    for stream in (1, 2) if form.sections else ():
        mask = mx.array([_stream(f, form) == stream for f in range(half)])
        chosen = mx.where(mask, angles[stream], chosen)
    if form.interleaved:
        chosen = mx.repeat(chosen, 2, axis=-1)
    else:
        chosen = mx.concatenate([chosen, chosen], axis=-1)
    chosen = chosen.astype(wide)
    return mx.cos(chosen) * form.scale, mx.sin(chosen) * form.scale


def vjp(primals, cotangent: mx.array, output: mx.array, **form: Any) -> tuple[Any, ...]:
    """For x the turn back, by the same kernel; for tables by autodiff; none for frequencies."""
    inverse = {**form, "inverse": not Form(**form).inverse}
    gradients = [KERNEL(cotangent, *primals[1:], **inverse)]
    if len(primals) < 5:
        return (*gradients, *(None if p is None else mx.zeros_like(p) for p in primals[1:]))
    x, positions, _, *tables = primals
    function = lambda cos, sin: fallback(x, positions, None, cos, sin, **form)  # noqa: E731
    through = mx.vjp(function, tables, [cotangent])[1]
    return (*gradients, None if positions is None else mx.zeros_like(positions), None, *through)


def rope(
    x: mx.array,
    positions: mx.array | None = None,
    frequencies: mx.array | None = None,
    cos: mx.array | None = None,
    sin: mx.array | None = None,
    **form: Any,
) -> mx.array:
    """Turn the first d dimensions of each head by their position (arXiv:2104.09864).

    x [.., H, L, D] or [.., L, D], floating. Give one of
    - positions [L] or [B, L], integer, and inverse frequencies [d/2], float32: the angles are
      their float32 products;
    - cos and sin [L, d] or [B, 1, L, d]: a value for each element;
    - positions and tables cos and sin [N, d]: rows of the tables, which hold every position.
    Keywords, as the fields of `Form`:
    - scale: what cosines and sines of frequencies are multiplied by (yarn's attention factor).
    - interleaved: dimension 2i is paired with 2i + 1, else i with i + d/2.
    - sections: three counts of frequencies that take the positions of time, height and width,
      which are [3, L] or [3, B, L] then; in turn, or with sections_interleaved T H W T H W ...
    - heads_last: x is [.., L, H, D].
    - rounded: cosines and sines are rounded to x's dtype first, as transformers does (default).
    - inverse: turn back.
    Computed in float32, rounded once to x's dtype. Raises ValueError for shapes that do not fit,
    TypeError for dtypes.
    """
    if not mx.issubdtype(x.dtype, mx.floating):
        raise TypeError(f"rope takes a floating dtype, not {x.dtype}")
    asked = Form(**form)
    if x.ndim < (3 if asked.heads_last else 2):
        raise ValueError(f"rope: x {x.shape} has no axes of tokens and dimensions")
    if frequencies is not None:
        width = _check_frequencies(positions, frequencies, cos, sin, asked)
    else:
        width = _check_tables(cos, sin, asked)
    if width < 2 or width % 2 or width > x.shape[-1]:
        raise ValueError(f"rope: {width} dimensions cannot turn in x {x.shape}")
    turn = problem(x, positions, frequencies, cos, sin, **form)
    if turn.rows not in (turn.tokens, turn.batch * turn.tokens):
        raise ValueError(f"rope: {turn.rows} positions do not fit the tokens of x {x.shape}")
    if frequencies is not None:
        return KERNEL(x, positions, frequencies, **form)
    return KERNEL(x, positions, None, cos, sin, **form)


def _check_frequencies(positions, frequencies, cos, sin, form: Form) -> int:
    if positions is None or cos is not None or sin is not None:
        raise ValueError("rope: frequencies go with positions, and without tables")
    if frequencies.ndim != 1 or frequencies.dtype != mx.float32:
        raise TypeError(f"rope: frequencies are float32 [d/2], not {frequencies.dtype}")
    if form.sections and (len(form.sections) != 3 or positions.shape[0] != 3):
        raise ValueError(f"rope: three sections want positions [3, ..], not {positions.shape}")
    return 2 * frequencies.shape[0]


def _check_tables(cos, sin, form: Form) -> int:
    if cos is None or sin is None or cos.shape != sin.shape or cos.ndim < 2:
        raise ValueError("rope: give frequencies, or cos and sin of one shape")
    if form.sections or form.scale != 1.0:
        raise ValueError("rope: sections and scale go with frequencies")
    return cos.shape[-1]


def cost(x: mx.array, *tables: mx.array | None, **form: Any) -> Cost:
    """Reads each array once and writes x's size; four products and two sums a pair."""
    given = sum(table.nbytes for table in tables if table is not None)
    return Cost(bytes=2 * x.nbytes + given, flops=3 * x.size)


def consecutive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Each row's positions from a start of its own."""
    starts = rng.integers(0, 4000, (*shape[:-1], 1))
    return starts + np.arange(shape[-1])


def late(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """The last positions of a context of 262,144."""
    return np.broadcast_to(262_144 - shape[-1] + np.arange(shape[-1]), shape)


def scattered(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Any positions below 40."""
    return rng.integers(0, 40, shape)


def inverse_frequencies(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """1e4^(-i / (d/2))."""
    return 1e4 ** (-np.arange(shape[0]) / max(shape[0], 1))


def _tables_case(x, d: int, why: str, rows=None, layout="contiguous", fill="normal", **form):
    tokens = x[-3] if form.get("heads_last") else x[-2]
    table = Spec((*(rows or (tokens,)), d), "float32")
    arrays = {"x": Spec(x, layout=layout, fill=fill), "positions": None, "frequencies": None}
    return Case({**arrays, "cos": table, "sin": table}, why, form)


def _case(x, positions, d: int, why: str, fill=consecutive, layout="contiguous", **form):
    arrays = {
        "x": Spec(x, layout=layout),
        "positions": Spec(positions, "int32", fill),
        "frequencies": Spec((d // 2,), "float32", inverse_frequencies),
    }
    return Case(arrays, why, form)


def _lookup_case(x, positions, d: int, why: str, **form):
    table = Spec((40, d), "float32")
    arrays = {"x": Spec(x), "positions": Spec(positions, "int32", scattered), "frequencies": None}
    return Case({**arrays, "cos": table, "sin": table}, why, form)


CASES = [
    _tables_case((2, 3, 5, 16), 16, "tables whose halves differ"),
    _tables_case((1, 9, 70, 64), 64, "SmolLM2-135M, a prompt, tables"),
    _tables_case((2, 3, 7, 24), 12, "partial, tables of each sequence", rows=(2, 1, 7)),
    _tables_case(
        (2, 7, 3, 20), 8, "interleaved, partial, heads last", interleaved=True, heads_last=True
    ),
    _case((1, 16, 1, 256), (1,), 64, "Qwen3.6-35B-A3B, one token", fill=late),
    _case((1, 2, 65, 256), (1, 65), 64, "its keys, a prompt"),
    _case(
        (2, 3, 70, 80),
        (3, 2, 70),
        64,
        "its three streams, interleaved",
        sections=(11, 11, 10),
        sections_interleaved=True,
    ),
    _case((1, 4, 66, 128), (3, 66), 128, "Qwen2-VL's streams", sections=(16, 24, 24)),
    _case((2, 16, 3, 128), (2, 3), 128, "Qwen3-0.6B, two sequences at their own positions"),
    _case((2, 66, 9, 64), (66,), 64, "heads last: as projected", heads_last=True, scale=1.2),
    _case((3, 6, 5, 36), (3, 5), 36, "interleaved, odd half", interleaved=True),
    _case((2, 4, 5, 16), (5,), 16, "turned back", inverse=True),
    _case((2, 4, 5, 16), (5,), 8, "turned back, interleaved", inverse=True, interleaved=True),
    _case((2, 4, 5, 32), (5,), 32, "cosines not rounded", rounded=False),
    _case((3, 2), (3,), 2, "fewer than 8 elements arrive in constant memory"),
    _lookup_case((2, 3, 6, 16), (2, 6), 16, "rows of a table"),
    _lookup_case((2, 9, 3, 16), (9,), 10, "rows of a table, heads last", heads_last=True),
    _tables_case((6, 10), 8, "special values stay in their pair", fill="specials"),
    _case((2, 4, 5, 16), (5,), 16, "transposed in memory", layout="transposed"),
    _case((2, 4, 5, 16), (5,), 16, "starts one element into its buffer", layout="offset"),
    _case((2, 4, 5, 16), (5,), 16, "every other element of a buffer", layout="strided"),
]

# Beyond rounding: cosines and sines, which are rounded to half types before the products, nmse
# 1.3e-6 for bfloat16 and 2e-8 for float16 by theory. float32: 1 ulp each of cos and product.
NMSE = {"float32": 1e-12, "float16": 1e-6, "bfloat16": 1e-5}

KERNEL = Kernel(
    "rope",
    function=rope,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=Metal(VARIANTS, problem, choose, launch),
    cpu="rope",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
