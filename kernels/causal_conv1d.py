"""Depthwise causal convolution over time, channels last, that carries its last inputs along.

A thread slides over a run of one channel's times with the window in registers.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from .kernel import Kernel
from .spec import FALLBACK, Case, Chip, Cost, Launch, Metal, Program, Spec

# A lane's K weights lie together, so each would touch lines of its own: a simdgroup reads the
# weights of its 32 channels side by side and passes them on.
SOURCE = """
    // x, out: [B, T, C], w: [C, K], state, next: [B, K - 1, C], bias: [C], padding: [B]
    uint c = thread_position_in_grid.x;
    uint lane = thread_index_in_simdgroup;
    uint tokens = x_shape[1];
    uint channels = x_shape[2];
    uint batch = thread_position_in_grid.z;
    uint first = thread_position_in_grid.y * RUN;
    float loaded[K];
    for (uint i = 0; i < K; i++) {
        ulong at = ulong(c - lane) * K + lane + 32 * i;
        loaded[i] = at < ulong(channels) * K ? float(w[at]) : 0.0f;
    }
    float taps[K];
    for (uint j = 0; j < K; j++) {
        uint at = lane * K + j;
        for (uint i = 0; i < K; i++) {
            float value = metal::simd_shuffle(loaded[i], ushort(at % 32));
            taps[j] = at / 32 == i || i == 0 ? value : taps[j];
        }
    }
    if (c >= channels) {
        return;
    }
    uint padded = @PADDED@;
    ulong column = ulong(batch) * tokens * channels + c;
    ulong kept = ulong(batch) * (K - 1) * channels + c;
    float window[K];
    for (uint j = 0; j < K - 1; j++) {
        // Time t is that of index t + K - 1 in state and x one after the other.
        uint index = first + j;
        window[j] = 0.0f;
        if (index < K - 1) {
            @STATE@
        } else if (index - (K - 1) >= padded) {
            window[j] = float(x[column + ulong(index - (K - 1)) * channels]);
        }
    }
    for (uint t = first; t < metal::min(first + RUN, tokens); t++) {
        ulong at = column + ulong(t) * channels;
        window[K - 1] = t < padded ? 0.0f : float(x[at]);
        float sum = @BIAS@;
        for (uint j = 0; j < K; j++) {
            sum += window[j] * taps[j];
        }
        out[at] = T(SILU ? sum / (1.0f + metal::precise::exp(-sum)) : sum);
        for (uint j = 0; j < K - 1; j++) {
            window[j] = window[j + 1];
        }
    }
    if (first + RUN >= tokens) {
        for (uint j = 0; j < K - 1; j++) {
            next[kept + ulong(j) * channels] = T(window[j]);
        }
    }
"""


def _program(state: bool, bias: bool, padding: bool) -> Program:
    optional = {"state": state, "bias": bias, "padding": padding}
    names = [name for name, there in optional.items() if there]
    source = SOURCE
    for mark, text in (
        ("@STATE@", "window[j] = float(state[kept + ulong(index) * channels]);" if state else ""),
        ("@BIAS@", "float(bias[c])" if bias else "0.0f"),
        ("@PADDED@", "uint(padding[batch])" if padding else "0"),
    ):
        source = source.replace(mark, text)
    name = "_".join(["causal_conv1d", *names])
    return Program(name, ("x", "w", *names), ("out", "next"), source)


PROGRAMS = {
    (state, bias, padding): _program(state, bias, padding)
    for state in (False, True)
    for bias in (False, True)
    for padding in (False, True)
}

# Times of a thread: a run reads K - 1 earlier inputs again, from the cache.
RUN = {"step": 1, "run": 8}

VARIANTS = {
    "step": "a thread a time; decoding",
    "run": "a thread eight times of a channel; prompts",
}

TAPS = range(2, 9)


@dataclass(frozen=True)
class Convolution:
    """x [batch, tokens, channels] with `taps` weights a channel; what comes with it."""

    batch: int
    tokens: int
    channels: int
    taps: int
    state: bool
    bias: bool
    padding: bool
    silu: bool
    dtype: mx.Dtype


def problem(
    x: mx.array,
    w: mx.array,
    state: mx.array | None = None,
    bias: mx.array | None = None,
    padding: mx.array | None = None,
    *,
    silu: bool,
) -> Convolution:
    """Describe the call; the shapes fit."""
    batch, tokens, channels = x.shape
    return Convolution(
        batch,
        tokens,
        channels,
        taps=w.shape[-1],
        state=state is not None,
        bias=bias is not None,
        padding=padding is not None,
        silu=silu,
        dtype=x.dtype,
    )


def choose(conv: Convolution, chip: Chip) -> str:
    """Name of the variant; needs no device, so tests can pin it."""
    if conv.dtype not in (mx.float32, mx.float16, mx.bfloat16):
        return FALLBACK
    if 0 in (conv.batch, conv.tokens, conv.channels):
        return FALLBACK
    return "step" if conv.tokens < RUN["run"] else "run"


def launch(conv: Convolution, variant: str) -> list[Launch]:
    """The one dispatch of a variant; ValueError where there is nothing to do."""
    if 0 in (conv.batch, conv.tokens, conv.channels):
        raise ValueError("causal_conv1d has no times, channels or rows to convolve")
    run = RUN[variant]
    x, kept = ((conv.batch, tokens, conv.channels) for tokens in (conv.tokens, conv.taps - 1))
    shapes = {"x": x, "w": (conv.channels, conv.taps), "state": kept}
    shapes |= {"bias": (conv.channels,), "padding": (conv.batch,)}
    program = PROGRAMS[conv.state, conv.bias, conv.padding]
    return [
        Launch(
            program,
            inputs={name: shapes[name] for name in program.inputs},
            outputs={"out": (x, conv.dtype), "next": (kept, conv.dtype)},
            grid=(32 * -(-conv.channels // 32), -(-conv.tokens // run), conv.batch),
            threadgroup=(128, 1, 1),
            template=(("T", conv.dtype), ("K", conv.taps), ("RUN", run), ("SILU", conv.silu)),
        )
    ]


def reference(
    x: np.ndarray,
    w: np.ndarray,
    state: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    padding: np.ndarray | None = None,
    *,
    silu: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """In float64."""
    channels, taps = w.shape[0], w.shape[-1]
    batch, tokens, _ = x.shape
    x, w = np.array(x, np.float64), w.reshape(channels, taps)
    for row, padded in enumerate(() if padding is None else padding):
        x[row, :padded] = 0.0
    earlier = np.zeros((batch, taps - 1, channels)) if state is None else state
    full = np.concatenate([earlier, x], axis=1)
    with np.errstate(invalid="ignore", over="ignore"):
        out = np.zeros(x.shape) + (0.0 if bias is None else bias)
        for j in range(taps):
            out = out + full[:, j : j + tokens] * w[:, j]
        out = out / (1 + np.exp(-out)) if silu else out
    return out, full[:, tokens:]


def fallback(
    x: mx.array,
    w: mx.array,
    state: mx.array | None = None,
    bias: mx.array | None = None,
    padding: mx.array | None = None,
    *,
    silu: bool,
) -> tuple[mx.array, mx.array]:
    """A product a tap, summed in float32, over state and x one after the other."""
    wide = mx.float64 if x.dtype == mx.float64 else mx.float32
    taps, tokens = w.shape[-1], x.shape[1]
    if padding is not None:
        real = mx.arange(tokens)[None, :, None] >= padding[:, None, None]
        x = mx.where(real, x, mx.zeros_like(x))
    if state is None:
        state = mx.zeros((x.shape[0], taps - 1, x.shape[2]), x.dtype)
    full = mx.concatenate([state, x], axis=1)
    window, weights = full.astype(wide), w.reshape(-1, taps).astype(wide)
    out = window[:, :tokens] * weights[:, 0]
    for j in range(1, taps):
        out = out + window[:, j : j + tokens] * weights[:, j]
    if bias is not None:
        out = out + bias.astype(wide)
    if silu:
        out = out * mx.sigmoid(out)
    return out.astype(x.dtype), full[:, tokens:]


def vjp(primals, cotangent, output, *, silu: bool) -> tuple[mx.array | None, ...]:
    """The same convolution, turned round in time, for x and the state; a sum a tap for w."""
    x, w, *rest = primals
    state, bias, padding = (*rest, None, None, None)[:3]
    wide = mx.float64 if x.dtype == mx.float64 else mx.float32
    taps, tokens = w.shape[-1], x.shape[1]
    weights = w.reshape(-1, taps).astype(wide)
    g, g_next = (c.astype(wide) for c in cotangent)
    full = x.astype(wide)
    real = None if padding is None else mx.arange(tokens)[None, :, None] >= padding[:, None, None]
    if real is not None:
        full = mx.where(real, full, 0)
    before = (x.shape[0], taps - 1, x.shape[2])
    full = mx.concatenate([mx.zeros(before, wide) if state is None else state, full], axis=1)
    full = full.astype(wide)
    if silu:
        added = None if bias is None else bias.astype(wide)
        sums = KERNEL(full[:, taps - 1 :], weights, full[:, : taps - 1], added, None, silu=False)[0]
        s = mx.sigmoid(sums)
        g = g * s * (1 + sums * (1 - s))
    # Input i meets tap j in sum i - j: from the end on, that is what the kernel computes.
    turned = mx.concatenate([g[:, ::-1], mx.zeros(before, wide)], axis=1)
    g_full = KERNEL(turned, weights, None, None, None, silu=False)[0][:, ::-1]
    g_full = mx.concatenate([g_full[:, :tokens], g_full[:, tokens:] + g_next], axis=1)
    g_x = g_full[:, taps - 1 :]
    g_x = (g_x if real is None else mx.where(real, g_x, 0)).astype(x.dtype)
    g_w = mx.stack([(g * full[:, j : j + tokens]).sum(axis=(0, 1)) for j in range(taps)], axis=-1)
    return (
        g_x,
        g_w.reshape(w.shape).astype(w.dtype),
        None if state is None else g_full[:, : taps - 1].astype(state.dtype),
        None if bias is None else g.sum(axis=(0, 1)).astype(bias.dtype),
        None if padding is None else mx.zeros_like(padding),
    )[: len(primals)]


def causal_conv1d(
    x: mx.array,
    w: mx.array,
    state: mx.array | None = None,
    bias: mx.array | None = None,
    padding: mx.array | None = None,
    *,
    silu: bool = False,
) -> tuple[mx.array, mx.array]:
    """out[t] = sum over j of w[j] x[t - K + 1 + j], plus bias, then SiLU if asked, per channel.

    x [B, T, C] as projected; w [C, K] or [C, 1, K], K from 2 to 8; bias [C], all of one floating
    dtype. state [B, K - 1, C]: the last K - 1 inputs before x, oldest first; None for zeros.
    padding [B], int32: the first padding[b] times of row b count as zeros. Returns (out [B, T, C],
    new state [B, K - 1, C]), computed in float32 and rounded once. (transformers keeps K inputs,
    [B, C, K]: its last K - 1 columns, transposed, are ours.) Raises ValueError for shapes that do
    not fit, TypeError for mixed dtypes.
    """
    if x.ndim != 3 or w.ndim not in (2, 3) or w.shape[:-1] not in (x.shape[2:], (x.shape[2], 1)):
        raise ValueError(f"causal_conv1d: w {w.shape} does not fit x {x.shape} as [B, T, C]")
    taps = w.shape[-1]
    if taps not in TAPS:
        raise ValueError(f"causal_conv1d takes 2 to 8 taps, not {taps}")
    wanted = {
        "state": (state, (x.shape[0], taps - 1, x.shape[2])),
        "bias": (bias, x.shape[2:]),
        "padding": (padding, x.shape[:1]),
    }
    for name, (array, shape) in wanted.items():
        if array is not None and array.shape != shape:
            raise ValueError(f"causal_conv1d: {name} is {array.shape}, not {shape}")
    given = [array for array in (x, w, state, bias) if array is not None]
    if any(array.dtype != x.dtype for array in given) or not mx.issubdtype(x.dtype, mx.floating):
        raise TypeError(
            f"causal_conv1d takes one floating dtype, not {', '.join(str(a.dtype) for a in given)}"
        )
    return KERNEL(x, w, state, bias, padding, silu=silu)


def cost(x: mx.array, w: mx.array, *rest: mx.array | None, silu: bool) -> Cost:
    """Reads each array once and writes x's size and the state; a product and a sum a tap."""
    read = sum(array.nbytes for array in (x, w, *rest) if array is not None)
    kept = x.shape[0] * (w.shape[-1] - 1) * x.shape[2] * x.itemsize
    return Cost(bytes=read + x.nbytes + kept, flops=2 * x.size * w.shape[-1])


def paddings(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """0, 3, 6, ... padded times."""
    return 3 * np.arange(shape[0])


def _case(
    shape: tuple[int, ...],
    taps: int,
    why: str,
    state: bool = True,
    bias: bool = False,
    padding: bool = False,
    silu: bool = True,
    **spec: Any,
) -> Case:
    batch, _, channels = shape
    arrays = {
        "x": Spec(shape, **spec),
        "w": Spec((channels, taps), layout=spec.get("layout", "contiguous")),
        "state": Spec((batch, taps - 1, channels)) if state else None,
        "bias": Spec((channels,)) if bias else None,
        "padding": Spec((batch,), "int32", paddings) if padding else None,
    }
    return Case(arrays, why, {"silu": silu})


CASES = [
    _case((1, 1, 8192), 4, "Qwen3.6-35B-A3B, one token"),
    _case((1, 19, 8192), 4, "its prompt, runs not whole", state=False),
    _case((2, 2, 100), 4, "fewer times than the state holds"),
    _case((3, 8, 33), 4, "one run, channels not a multiple of 32", bias=True),
    _case((3, 20, 40), 4, "left padding within and beyond a run", state=False, padding=True),
    _case((2, 5, 40), 3, "padding beside a state, bias", padding=True, bias=True),
    _case((2, 17, 65), 2, "two taps, no SiLU", silu=False),
    _case((2, 9, 70), 8, "eight taps, the state longer than a run is left", bias=True),
    _case((1, 12, 31), 5, "five taps, less than a simdgroup", state=False, bias=True, silu=False),
    _case((1, 1, 1), 2, "one channel: all in constant memory", bias=True),
    _case((1, 3, 2), 4, "fewer than 8 elements arrive in constant memory", padding=True),
    _case((1, 6, 40), 4, "special values", fill="specials"),
    _case((2, 11, 48), 4, "transposed in memory", layout="transposed"),
    _case((2, 11, 48), 4, "starts one element into its buffer", layout="offset"),
    _case((2, 11, 48), 4, "every other element of a buffer", layout="strided"),
]

# Beyond rounding: up to nine terms and SiLU in float32.
NMSE = {"float32": 1e-12, "float16": 1e-9, "bfloat16": 1e-8}

KERNEL = Kernel(
    "causal_conv1d",
    function=causal_conv1d,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=Metal(VARIANTS, problem, choose, launch, outputs=("out", "next")),
    cpu="causal_conv1d",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
