"""Convolution over frames, rows and columns, channels last: an implicit matrix product.

The columns of a kernel row meet neighbouring values in memory, so K is cut into KD x KH runs of
KW * C values. Cached frames, padding and a doubled image are index arithmetic: nothing is
concatenated, padded or enlarged in memory. One float32 sum takes in all taps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import mlx.core as mx
import numpy as np

from . import e4m3, tiles
from .convolving import (
    NMSE,
    Pair,
    bias_gradient,
    check,
    less_cache,
    outputs,
    pairs,
    plain,
    spread,
    whole_image,
    wide,
    window,
)
from .kernel import Kernel
from .spec import FALLBACK, Case, Chip, Cost, Launch, Metal, Program, Spec, Tiled

# The first BM threads hold a pixel of the output each. For every run they say where it starts and
# which part of it lies in the image: the rest is padding, and reads as zero. A doubled image has
# runs of C values, as each of its columns is two. Frames before the first are the cache's.
# Lanes read 32 neighbours that begin where a line of memory does, wherever the pixel begins: what
# of them is the next step's waits in `next_a` and `next_b` (3, 12 and 48 channels: 60 to 75 % of
# the loads were coalesced when reads began with the pixel, all are now; simulator, 2026-12-02).
SOURCE = """
    // x: [B, D, H, W, C], w: [O, KD, KH, KW, C], out: [pixels, O]; a threadgroup BM x BN outputs
    constexpr uint BM = 64;
    threadgroup float memory[SCRATCH];
    threadgroup long starts[BM];
    threadgroup int lows[BM];
    threadgroup int highs[BM];
    threadgroup int cached[BM];
    threadgroup uint shifts[BM];
    constexpr uint TM = 4;
    constexpr uint TN = BN / 16;
    constexpr uint ROW = padded<T>(BK);
    uint rows = uint(x_shape[0]) * out_d * out_h * out_w;
    uint columns = w_shape[0];
    int depth = x_shape[1];
    int height = x_shape[2];
    int width = x_shape[3];
    int channels = x_shape[4];
    int row_runs = UPSAMPLE ? w_shape[3] : 1;
    int run = UPSAMPLE ? channels : w_shape[3] * channels;
    int row_taps = w_shape[2] * row_runs;
    ulong k = ulong(w_shape[1]) * row_taps * run;
    uint lane = thread_index_in_simdgroup;
    uint simdgroup = simdgroup_index_in_threadgroup;
    uint row0 = threadgroup_position_in_grid.y * BM;
    uint column0 = threadgroup_position_in_grid.x * BN;
    uint mine = thread_index_in_threadgroup;
    uint pixel = row0 + mine;
    long batch = pixel / (uint(out_w) * out_h * out_d);
    int d0 = int(pixel / (uint(out_w) * out_h) % out_d) * stride_d - front;
    int h0 = int(pixel / out_w % out_h) * stride_h - top;
    int w0 = int(pixel % out_w) * stride_w - left;
    threadgroup T* a = reinterpret_cast<threadgroup T*>(memory);
    threadgroup T* b = a + BM * ROW;
    const threadgroup T* my_a = a + simdgroup % 2 * 8 * TM * ROW;
    const threadgroup T* my_b = b + simdgroup / 2 * 8 * TN * ROW;
    metal::simdgroup_float8x8 sums[TM * TN];
    clear_sums<TM * TN>(sums);
    for (int tap = first_d * row_taps; tap < last_d * row_taps; tap++) {
        if (mine < BM) {
            int d = d0 + tap / row_taps;
            int h = h0 + tap % row_taps / row_runs;
            int c = w0 + tap % row_runs;
            bool inside = pixel < rows && d >= -cache_d && d < depth && h >= 0;
            lows[mine] = UPSAMPLE ? 0 : metal::max(-c, 0) * channels;
            int high = UPSAMPLE ? run : metal::min(width - c, w_shape[3]) * channels;
            if (UPSAMPLE) {
                inside = inside && c >= 0 && c < 2 * width;
                h >>= 1;
                c >>= 1;
            }
            inside = inside && h < height;
            highs[mine] = inside ? high : 0;
            cached[mine] = d < 0;
            long frame = d < 0 ? batch * cache_d + d + cache_d : batch * depth + d;
            starts[mine] = ((frame * height + h) * width + c) * channels;
            shifts[mine] = @SHIFT@;
        }
        T next_a[BM / TILE_SIMDGROUPS] = {};
        T next_b[BN / TILE_SIMDGROUPS] = {};
        for (int begin = -int(BK); begin < run; begin += BK) {
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            int after = begin + int(BK + lane);
            #pragma unroll
            for (uint i = 0; i < BM / TILE_SIMDGROUPS; i++) {
                uint r = simdgroup + i * TILE_SIMDGROUPS;
                uint shift = shifts[r];
                int e = after - int(shift);
                T value = T(0);
                if (e >= lows[r] && e < highs[r]) {
                    ulong at = starts[r] + e;
                    value = @READ@;
                }
                a[r * ROW + (lane - shift) % BK] = lane < shift ? value : next_a[i];
                next_a[i] = value;
            }
            #pragma unroll
            for (uint i = 0; i < BN / TILE_SIMDGROUPS; i++) {
                uint r = simdgroup + i * TILE_SIMDGROUPS;
                ulong start = (column0 + r) * k + ulong(tap) * run;
                uint shift = past_line(w, start);
                int e = after - int(shift);
                T value = column0 + r < columns && e >= 0 && e < run ? w[start + e] : T(0);
                b[r * ROW + (lane - shift) % BK] = lane < shift ? value : next_b[i];
                next_b[i] = value;
            }
            if (begin < 0) {
                continue;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            multiply_tiles<TM, TN, false, true>(sums, my_a, ROW, my_b, ROW);
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    threadgroup float* strip = memory + simdgroup * 64 * TN;
    row0 += simdgroup % 2 * 8 * TM;
    column0 += simdgroup / 2 * 8 * TN;
""" + tiles.store("out[ulong(row) * columns + column] = T(sum@BIAS@);")

PAST_LINE = """
// Elements from the last multiple of 32 in memory to element `at`: a line of floats, half of one.
template <typename Pointer>
inline uint past_line(Pointer source, ulong at) {
    return uint(reinterpret_cast<ulong>(source + at) / sizeof(*source)) % 32;
}
"""

SCALARS = (
    *("out_d", "out_h", "out_w", "stride_d", "stride_h", "stride_w", "front", "top", "left"),
    *("cache_d", "first_d", "last_d"),
)


def _program(bias: bool, cache: bool) -> Program:
    source = SOURCE.replace("@BIAS@", " + float(bias[column])" if bias else "")
    source = source.replace("@READ@", "cached[r] ? cache[at] : x[at]" if cache else "x[at]")
    shift = "past_line(x, starts[mine])"
    shift = f"d < 0 ? {shift.replace('x', 'cache')} : {shift}" if cache else shift
    source = source.replace("@SHIFT@", shift)
    name = "conv" + "_bias" * bias + "_cache" * cache
    inputs = ("x", "w", *("bias",) * bias, *("cache",) * cache, *SCALARS)
    return Program(name, inputs, ("out",), source, e4m3.READ + tiles.HEADER + PAST_LINE)


BOTH = (False, True)
PROGRAMS = {(bias, cache): _program(bias, cache) for bias in BOTH for cache in BOTH}

BM = 64
TILE_COLUMNS = {"tile16": 16, "tile32": 32, "tile64": 64}

VARIANTS = {
    "tile16": "a threadgroup 64 pixels x 16 channels; up to 16 channels out, as a last layer",
    "tile32": "64 pixels x 32 channels; up to 32 channels out",
    "tile64": "64 pixels x 64 channels; more",
}

# A tile has five arrays beside its memory: 8 + 4 * 4 bytes a pixel.
PIXEL_BYTES = 24


@dataclass(frozen=True)
class Convolution:
    """x [B, D, H, W, C] with `cached` frames before it, w [O, KD, KH, KW, C], out [B, .., O].

    `before` is what the first output sees in front of, above and left of x: padding and cache.
    `shape` is the result's.
    """

    x: tuple[int, ...]
    w: tuple[int, ...]
    cached: int
    bias: bool
    stride: tuple[int, ...]
    before: tuple[int, ...]
    out: tuple[int, ...]
    shape: tuple[int, ...]
    upsample: bool
    dense: bool  # neither dilation nor groups
    dtype: mx.Dtype


def problem(
    x, w, bias=None, cache=None, *, stride, padding, upsample=False, dilation=(1, 1, 1), groups=1
) -> Convolution:
    """Describe the convolution; the shapes fit."""
    cached = 0 if cache is None else cache.shape[1]
    (front, _), (top, _), (left, _) = less_cache(padding, cached)
    sizes = outputs(x.shape, w.shape, cached, stride, padding, upsample, dilation)
    out = (x.shape[0], *sizes, w.shape[0])
    return Convolution(
        x.shape,
        w.shape,
        cached,
        bias=bias is not None,
        stride=stride,
        before=(front + cached, top, left),
        out=out,
        shape=out,
        upsample=upsample,
        dense=groups == 1 and set(dilation) == {1},
        dtype=x.dtype,
    )


def choose(conv: Convolution, chip: Chip) -> str:
    """Name of the variant; needs no device, so tests can pin it."""
    if conv.dtype not in (mx.float32, mx.float16, mx.bfloat16) or _obstacle(conv):
        return FALLBACK
    columns = conv.w[0]
    return "tile16" if columns <= 16 else "tile32" if columns <= 32 else "tile64"


def _obstacle(conv: Convolution) -> str:
    """What the program cannot take, or ""."""
    if not conv.dense:
        return "no dilation, no groups"
    if 0 in (*conv.x, *conv.w, *conv.out):
        return "no empty arrays"
    if prod(conv.out[:-1]) > 2**32 - BM or max(prod(conv.w[3:]), conv.x[3] * conv.x[4]) >= 2**31:
        return "fewer pixels, or shorter rows"
    return ""


def bar(conv: Convolution, variant: str) -> Tiled:
    """A product of [pixels, taps x channels] and the weights."""
    m, n, k, size = prod(conv.out[:-1]), conv.w[0], prod(conv.w[1:]), conv.dtype.size
    return Tiled(m, n, k, BM, TILE_COLUMNS[variant], size, size, m * n * size)


def launch(conv: Convolution, variant: str) -> list[Launch]:
    """The one dispatch of a variant; ValueError where it cannot serve the problem."""
    obstacle = _obstacle(conv)
    if obstacle:
        raise ValueError(f"conv3d takes {obstacle}")
    bn = TILE_COLUMNS[variant]
    scratch = tiles.scratch(BM, bn, conv.dtype.size, b_turned=True)
    inputs = {"x": conv.x, "w": conv.w, "bias": (conv.w[0],)}
    if conv.cached:
        inputs["cache"] = (conv.x[0], conv.cached, *conv.x[2:])
    numbers = (*conv.out[1:4], *conv.stride, *conv.before, conv.cached, *_useful(conv))
    program = PROGRAMS[conv.bias, conv.cached > 0]
    across, down = -(-conv.w[0] // bn), -(-prod(conv.out[:-1]) // BM)
    return [
        Launch(
            program,
            inputs={name: inputs[name] for name in program.inputs if name in inputs},
            outputs={"out": (conv.shape, conv.dtype)},
            grid=(32 * across, tiles.SIMDGROUPS * down, 1),
            threadgroup=(32, tiles.SIMDGROUPS, 1),
            template=(
                ("T", conv.dtype),
                ("BN", bn),
                ("UPSAMPLE", conv.upsample),
                ("SCRATCH", scratch),
            ),
            threadgroup_bytes=4 * scratch + PIXEL_BYTES * BM,
            scalars=dict(zip(SCALARS, numbers, strict=True)),
        )
    ]


def _useful(conv: Convolution) -> Pair:
    """First and last + 1 of the taps along D that meet a frame: one of three for a first frame."""
    last_start = (conv.out[1] - 1) * conv.stride[0] - conv.before[0]
    taps = [
        tap
        for tap in range(conv.w[1])
        if last_start + tap >= -conv.cached and tap - conv.before[0] < conv.x[1]
    ]
    return (taps[0], taps[-1] + 1) if taps else (0, 0)


def reference(
    x,
    w,
    bias=None,
    cache=None,
    stride=(1, 1, 1),
    padding=((0, 0),) * 3,
    upsample=False,
    dilation=(1, 1, 1),
    groups=1,
):
    """The sum over taps in float64."""
    w = np.asarray(w, np.float64)
    x = np.asarray(whole_image(np, x, cache, padding, upsample), np.float64)
    sizes = outputs(x.shape, w.shape, 0, stride, ((0, 0),) * 3, False, dilation)
    out = np.zeros((x.shape[0], *sizes, w.shape[0]))
    parts = [np.split(a, groups, axis) for a, axis in ((x, -1), (w, 0), (out, -1))]
    with np.errstate(invalid="ignore"):
        for image, weights, sums in zip(*parts, strict=True):
            for tap in np.ndindex(w.shape[1:4]):
                met = image[window(tap, stride, dilation, sizes)]
                sums += met @ weights[(slice(None), *tap)].T
    return out if bias is None else out + np.asarray(bias, np.float64)


def fallback(
    x, w, bias=None, cache=None, *, stride, padding, upsample=False, dilation=(1, 1, 1), groups=1
) -> mx.array:
    """A matrix product for each row of the kernel and group, in float32 for half types."""
    cached = 0 if cache is None else cache.shape[1]
    sizes = outputs(x.shape, w.shape, cached, stride, padding, upsample, dilation)
    if 0 in (x.shape[0], *sizes, w.shape[0]):
        return mx.zeros((x.shape[0], *sizes, w.shape[0]), x.dtype)
    image = whole_image(mx, x, cache, padding, upsample)
    return plain(image, wide(w), bias, stride, dilation, groups, sizes)


def vjp(
    primals,
    cotangent: mx.array,
    output,
    *,
    stride,
    padding,
    upsample=False,
    dilation=(1, 1, 1),
    groups=1,
):
    """For the image the transposed convolution of the cotangent; conv_weights.py; its sum."""
    # They are each other's gradients, so one has to wait.
    from .conv_transpose import conv_transpose
    from .conv_weights import conv_weights

    x, w, bias, cache = (*primals, None, None)[:4]
    cached = 0 if cache is None else cache.shape[1]
    factor = 2 if upsample else 1
    lengths = (x.shape[1] + cached, factor * x.shape[2], factor * x.shape[3])
    pads = []
    for i, (front, _) in enumerate(less_cache(padding, cached)):
        full = (cotangent.shape[i + 1] - 1) * stride[i] + dilation[i] * (w.shape[i + 1] - 1) + 1
        pads.append((front, full - front - lengths[i]))
    numbers = {"stride": stride, "dilation": dilation, "groups": groups}
    image = conv_transpose(cotangent, w, padding=pads, **numbers)
    if upsample:
        doubled = wide(image).reshape(*image.shape[:2], *x.shape[2:3], 2, x.shape[3], 2, -1)
        image = doubled.sum(axis=(3, 5)).astype(x.dtype)
    numbers |= {"padding": padding, "upsample": upsample}
    dw = conv_weights(x, cotangent, cache, kernel=w.shape[1:4], **numbers)
    db = None if bias is None else bias_gradient(cotangent)
    return (image[:, cached:], dw, db, image[:, :cached])[: len(primals)]


def conv3d(
    x: mx.array,
    w: mx.array,
    bias: mx.array | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | Pair] = 0,
    cache: mx.array | None = None,
    upsample: bool = False,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> mx.array:
    """Convolution (torch's: correlation) over frames, rows and columns, summed in float32.

    x [B, D, H, W, C], w [O, KD, KH, KW, C / groups], bias [O], cache [B, DC, H, W, C], all of one
    dtype: float32, float16, bfloat16, and float64 on the CPU. `stride` and `dilation` (between
    taps) are a number or one for each of D, H and W; `padding`, with zeros, a number or, for each,
    a number or (before, after). The frames of `cache` come before x, and take the place of as much
    padding in front. `upsample` doubles rows and columns first, as nearest does. Returns
    [B, OD, OH, OW, O], rounded once. Raises ValueError for shapes that do not fit, TypeError for
    mixed dtypes.
    """
    if x.ndim != 5:
        raise ValueError(f"conv3d takes x as [B, D, H, W, C], not {x.shape}")
    steps, pads, gaps = spread(stride, 3), pairs(padding, 3), spread(dilation, 3)
    if cache is not None and cache.ndim == 5 and cache.shape[1] == 0:
        cache = None
    check("conv3d", x, w, bias, cache, steps, pads, upsample, gaps, groups)
    arrays = (x, w, bias) if cache is None else (x, w, bias, cache)
    numbers = {"stride": steps, "padding": pads, "upsample": upsample}
    return KERNEL(*arrays, **numbers, dilation=gaps, groups=groups)


def conv3d_in_order(x, w, bias=None, cache=None, *, stride=1, padding=0, upsample=False, **rest):
    """conv3d with its arrays first, as cases have them."""
    return conv3d(x, w, bias, stride, padding, cache, upsample, **rest)


def cost(x, w, bias=None, cache=None, **keywords) -> Cost:
    """As `least`."""
    conv = problem(x, w, bias, cache, **keywords)
    return least(conv, [array for array in (x, bias, cache) if array is not None])


def least(conv: Convolution, arrays: Sequence[mx.array]) -> Cost:
    """Reads `arrays` and each weight that meets a frame once, writes the result.

    A multiply and an add for each of these weights and pixel, and one for each output.
    """
    first, last = _useful(conv)
    weights = conv.w[0] * (last - first) * prod(conv.w[2:])
    moved = sum(array.nbytes for array in arrays)
    written = prod(conv.out)
    moved += (weights + written) * conv.dtype.size
    return Cost(bytes=moved, flops=2 * prod(conv.out[:-1]) * weights + written)


def _case(
    why: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    cached: int = 0,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | Pair] = 0,
    bias: bool = True,
    upsample: bool = False,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    **spec,
) -> Case:
    """x [B, D, H, W, C], w [O, KD, KH, KW]: of about 1 / sqrt(K), so that outputs are about one."""
    channels = x[-1] // groups
    arrays = {
        "x": Spec(x, **spec),
        "w": Spec((*w, channels), scale=prod((*w[1:], channels)) ** -0.5),
        "bias": Spec(w[:1]) if bias else None,
        "cache": Spec((x[0], cached, *x[2:]), **spec) if cached else None,
    }
    numbers: dict[str, object] = {"stride": spread(stride, 3), "padding": pairs(padding, 3)}
    numbers["upsample"] = upsample
    if dilation != 1 or groups != 1:
        numbers |= {"dilation": spread(dilation, 3), "groups": groups}
    return Case(arrays, why, numbers)


CAUSAL, TIME = ((2, 0), 1, 1), ((2, 0), 0, 0)
ODD = ((1, 2), (0, 1), (2, 0))

CASES = [
    _case("nothing even", (2, 3, 5, 6, 17), (19, 2, 3, 2), stride=2, padding=ODD),
    _case("Wan2.2 decoder, 1024 channels", (1, 1, 5, 5, 1024), (34, 3, 3, 3), 2, padding=CAUSAL),
    _case("Wan2.2 decoder, four frames", (1, 4, 4, 5, 256), (40, 3, 3, 3), 2, padding=CAUSAL),
    _case("Wan2.2 conv_in, the first frame", (1, 1, 8, 9, 48), (130, 3, 3, 3), padding=CAUSAL),
    _case("Wan2.2 conv_out", (1, 1, 9, 9, 256), (12, 3, 3, 3), 2, padding=CAUSAL),
    _case("time_conv", (1, 1, 8, 9, 512), (72, 3, 1, 1), 2, padding=TIME),
    _case("half the frames", (1, 4, 5, 6, 160), (40, 3, 1, 1), 1, stride=(2, 1, 1)),
    _case("shortcut: a plain product", (1, 2, 5, 7, 1024), (66, 1, 1, 1)),
    _case("Wan2.2 encoder conv_in", (1, 5, 6, 11, 12), (160, 3, 3, 3), padding=CAUSAL),
    _case("Wan2.1 encoder conv_in", (1, 3, 8, 9, 3), (96, 3, 3, 3), 1, padding=CAUSAL),
    _case("patches of a vision tower", (1, 2, 32, 48, 3), (36, 2, 16, 16), stride=(2, 16, 16)),
    _case(
        "Wan2.2 decoder, twice the rows and columns",
        (1, 1, 6, 5, 256),
        (70, 1, 3, 3),
        padding=(0, 1, 1),
        upsample=True,
    ),
    _case("doubled image", (2, 1, 5, 6, 40), (33, 1, 3, 3), padding=(0, 1, 1), upsample=True),
    _case(
        "doubled and cached, every other row",
        (1, 1, 3, 4, 34),
        (20, 2, 2, 3),
        cached=1,
        stride=(1, 2, 1),
        padding=((1, 1), (1, 0), 2),
        upsample=True,
    ),
    _case("fewer than 8 elements, all in constant memory", (1, 1, 1, 2, 3), (1, 1, 1, 2)),
    _case("x and cache in constant memory", (1, 1, 1, 1, 5), (9, 2, 1, 1), 1, bias=False),
    _case("outputs that see padding only", (1, 2, 2, 3, 4), (5, 3, 3, 3), padding=3, bias=False),
    _case("no tap meets a frame", (1, 1, 2, 2, 4), (3, 2, 1, 1), stride=10, padding=((5, 0), 0, 0)),
    _case("NaN and infinity", (1, 2, 4, 5, 20), (9, 2, 3, 3), padding=1, fill="specials"),
    _case("unaligned", (2, 2, 4, 5, 24), (9, 3, 2, 2), 2, bias=False, layout="offset"),
    _case("transposed in memory", (1, 2, 4, 5, 24), (9, 1, 2, 2), layout="transposed"),
    _case("dilated", (2, 4, 7, 8, 20), (35, 2, 3, 3), 1, padding=ODD, dilation=(1, 2, 3)),
    _case("dilated, few channels", (1, 3, 9, 8, 3), (17, 2, 2, 2), stride=2, dilation=(2, 3, 2)),
    _case("four groups", (2, 2, 5, 4, 20), (24, 2, 3, 2), 1, padding=ODD, groups=4),
    _case("a channel each", (2, 3, 6, 21, 37), (37, 2, 3, 3), 1, padding=ODD, groups=37),
    _case(
        "a channel each, dilated and strided",
        (1, 4, 7, 19, 20),
        (20, 2, 3, 2),
        stride=(1, 2, 2),
        padding=1,
        dilation=(2, 1, 3),
        groups=20,
    ),
    _case("a channel gives two", (1, 2, 5, 4, 6), (12, 2, 3, 3), padding=1, groups=6),
]

KERNEL = Kernel(
    "conv3d",
    function=conv3d_in_order,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=Metal(VARIANTS, problem, choose, launch, bar=bar),
    cpu="convolution",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
