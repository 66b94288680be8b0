"""Products of rows sorted by expert with float8 e4m3 expert weights, for a prompt's experts.

Rows are jagged as in grouped_matmul.py and found alike (jagged.py); weights are decoded and scaled
as in fp8_matmul.py, whose programs these are, and never written out. Few rows go one by one, each
reading its expert's weights; more go by tiles of one expert.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from . import dots, e4m3, grouped_matmul, jagged, tiles
from .fp8_matmul import BLOCK, FEW, LOAD_X, SCALE_SHIFTS, SHIFTS, TILED, scales, weights
from .kernel import Kernel
from .matmul import matmul
from .spec import FALLBACK, STREAMING, Case, Chip, Cost, Launch, Metal, Program, Spec, Tiled

# step: scales of an expert, 0 where all experts share one.
FEW_PLACE = """uint columns = w_shape[1];
    uint k = w_shape[2];
    uint rows = 1;
    uint place = threadgroup_position_in_grid.z;
    uint group = find_group(
        offs, w_shape[0], x_shape[0], place, thread_index_in_simdgroup);
    if (group >= uint(w_shape[0])) {
        uint column = thread_position_in_grid.y * COLUMNS + thread_index_in_simdgroup;
        if (thread_index_in_simdgroup < COLUMNS && column < columns) {
            out[ulong(place) * columns + column] = T(0);
        }
        return;
    }
    ulong x_at = place * ulong(k);
    ulong w_at = group * ulong(columns) * k;
    ulong scale_at = group * ulong(step);"""

TILED_PLACE = """uint columns = w_shape[1];
    uint3 part = find_tile<BM>(offs, w_shape[0], x_shape[0], threadgroup_position_in_grid.y, lane);
    row0 = part.y;
    uint rows = part.z;
    if (row0 >= rows) {
        return;
    }
    // What follows the last expert's rows is zero: K is 0.
    bool known = part.x < uint(w_shape[0]);
    uint k = known ? w_shape[2] : 0;
    ulong w_at = part.x * ulong(columns) * k;
    ulong scale_at = known ? part.x * ulong(step) : 0;"""

STORE = "out[ulong(place) * columns + column] = T(sum);"

TILED_STORE = """if (SCALES != 2) {
                    sum = known ? sum * float(scale[scale_at + (SCALES == 1 ? column : 0)]) : 0.0f;
                }
                out[ulong(row) * columns + column] = T(sum);"""


def _filled(text: str, place: str, store: str) -> str:
    marks = {"@PLACE@": place, "@SCALE_X@": "", "@LOAD_X@": LOAD_X, "@EPILOGUE@": store}
    for mark, filling in marks.items():
        text = text.replace(mark, filling)
    return text


INPUTS = ("x", "w", "scale", "offs", "step")
FEW_PROGRAM = Program(
    "fp8_grouped_few",
    (*INPUTS, *SHIFTS),
    ("out",),
    _filled(FEW, FEW_PLACE, STORE),
    dots.HEADER + jagged.HEADER,
)
TILED_PROGRAM = Program(
    "fp8_grouped_tiled",
    INPUTS,
    ("out",),
    _filled(TILED, TILED_PLACE, TILED_STORE),
    e4m3.READ + tiles.HEADER + jagged.HEADER,
)

VARIANTS = {
    "few": "a threadgroup 8 outputs of a row; a few tokens' experts",
    **jagged.TILES,
}

# Outputs of a simdgroup, and simdgroups of a threadgroup, for few rows.
COLUMNS, SIMDGROUPS = 1, 8


@dataclass(frozen=True)
class Groups:
    """x [m, k] times w [groups, n, k]; scales as in fp8_matmul.SCALES, `step` of them an expert."""

    m: int
    n: int
    k: int
    groups: int
    scales: int
    step: int
    scale_shape: tuple[int, ...]
    dtype: mx.Dtype


def scale_kind(scale: tuple[int, ...], w: tuple[int, ...]) -> int:
    """0 one scale for all weights of an expert, 1 one for each output, 2 one for each block."""
    groups, n, _ = w
    one = scale in ((), (1,), (groups,), (groups, 1, 1))
    return 0 if one else 1 if scale == (groups, n, 1) else 2


def problem(x: mx.array, w: mx.array, scale: mx.array, offs: mx.array) -> Groups:
    """Describe the product; the shapes fit."""
    groups, n, k = w.shape
    step = scale.size // groups if groups and scale.size >= groups else 0
    kind = scale_kind(scale.shape, w.shape)
    return Groups(x.shape[0], n, k, groups, kind, step, scale.shape, x.dtype)


def choose(groups: Groups, chip: Chip) -> str:
    """Name of the variant, by rows as in grouped_matmul."""
    if groups.dtype not in (mx.float32, mx.float16, mx.bfloat16) or _obstacle(groups):
        return FALLBACK
    return jagged.choose(groups.m, groups.groups)


def _obstacle(groups: Groups) -> str:
    """What the programs cannot take, or ""."""
    if 0 in (groups.m, groups.n, groups.k, groups.groups):
        return "no empty arrays"
    if groups.n * groups.k * groups.groups < 8:
        return "no weights in constant memory (fewer than 8)"
    return ""


def bar(groups: Groups, variant: str) -> float | Tiled:
    """As grouped_matmul's, with codes for weights."""
    if variant == "few":
        return STREAMING
    m, n, size = groups.m, groups.n, groups.dtype.size
    return Tiled(
        m, n, groups.k, jagged.TILE_ROWS[variant], 64, size, 1, m * n * size, groups.groups
    )


def launch(groups: Groups, variant: str) -> list[Launch]:
    """The one dispatch of a variant; ValueError where it cannot serve the problem."""
    obstacle = _obstacle(groups)
    if obstacle:
        raise ValueError(f"fp8_grouped takes {obstacle}")
    inputs = {
        "x": (groups.m, groups.k),
        "w": (groups.groups, groups.n, groups.k),
        "scale": groups.scale_shape or (1,),
        "offs": (groups.groups,),
    }
    outputs = {"out": ((groups.m, groups.n), groups.dtype)}
    if variant == "few":
        return [_few(groups, inputs, outputs)]
    bm = jagged.TILE_ROWS[variant]
    scratch = tiles.scratch(bm, 64, groups.dtype.size, b_turned=True)
    template = {"T": groups.dtype, "TILE": groups.dtype, "SCALES": groups.scales, "BLOCK": BLOCK}
    template |= {"BM": bm, "DOWN": tiles.split(bm, 64)[0], "SCRATCH": scratch}
    across, down = -(-groups.n // 64), -(-groups.m // bm) + groups.groups
    return [
        Launch(
            TILED_PROGRAM,
            inputs,
            outputs,
            grid=(32 * across, tiles.SIMDGROUPS * down, 1),
            threadgroup=(32, tiles.SIMDGROUPS, 1),
            template=tuple(template.items()),
            threadgroup_bytes=4 * scratch,
            scalars={"step": groups.step},
        )
    ]


def _few(groups: Groups, inputs, outputs) -> Launch:
    chunk = dots.chunk(1, 1)
    template = {"T": groups.dtype, "M": 1, "COLUMNS": COLUMNS, "SIMDGROUPS": SIMDGROUPS}
    template |= {"CHUNK": chunk, "STEP": 32 * dots.run(1)}
    threadgroups = -(-groups.n // (COLUMNS * SIMDGROUPS))
    shifts = dict(zip(SHIFTS, SCALE_SHIFTS[groups.scales], strict=True))
    return Launch(
        FEW_PROGRAM,
        inputs,
        outputs,
        grid=(32, SIMDGROUPS * threadgroups, groups.m),
        threadgroup=(32, SIMDGROUPS, 1),
        template=tuple(template.items()),
        threadgroup_bytes=4 * chunk,
        scalars={"step": groups.step, **shifts},
    )


def expand(scale, shape: tuple[int, ...], repeat):
    """`scale` as it multiplies expert weights of `shape`; `repeat` is NumPy's or MLX's."""
    kind = scale_kind(scale.shape, shape)
    if kind == 0:
        return scale.reshape(-1, 1, 1)
    if kind == 1:
        return scale
    wide = repeat(scale, BLOCK, -1)[..., : shape[-1]]
    return repeat(wide, BLOCK, -2)[..., : shape[-2], :]


def reference(x: np.ndarray, w: np.ndarray, scale: np.ndarray, offs: np.ndarray) -> np.ndarray:
    """Expert by expert in float64."""
    decoded = e4m3.widen(w) * expand(np.asarray(scale, np.float64), w.shape, np.repeat)
    return grouped_matmul.reference(x, decoded.swapaxes(1, 2), offs)


def fallback(x: mx.array, w: mx.array, scale: mx.array, offs: mx.array) -> mx.array:
    """The weights written out, of the rows' experts or of all, then grouped_matmul's fallback."""
    if 0 in (*x.shape, *w.shape):
        return mx.zeros((x.shape[0], w.shape[1]), x.dtype)
    wide = mx.float64 if x.dtype == mx.float64 else mx.float32
    # Codes have no gradient, and MLX's from_fp8 no rule to say so; its float64 is wrong (0.32.4).
    codes, factors = mx.stop_gradient(w), scale.astype(wide)
    rows, count = x.shape[0], w.shape[0]
    if rows <= count:
        group = jagged.groups(mx.stop_gradient(offs), rows)
        known = mx.minimum(group, count - 1)
        taken = mx.take(codes, known, axis=0)
        if factors.shape[:1] == (count,):
            factors = mx.take(factors, known, axis=0)
        decoded = mx.from_fp8(taken, mx.float32).astype(wide) * expand(
            factors, taken.shape, mx.repeat
        )
        out = matmul(x[:, None, :].astype(wide), decoded.swapaxes(1, 2))
        return mx.where((group < count)[:, None], out[:, 0, :], 0).astype(x.dtype)
    decoded = mx.from_fp8(codes, mx.float32).astype(wide) * expand(factors, w.shape, mx.repeat)
    half = x.dtype in (mx.float16, mx.bfloat16)
    inner = wide if half and mx.default_device().type == mx.cpu else x.dtype
    turned = decoded.astype(inner).swapaxes(1, 2)
    return grouped_matmul.fallback(x.astype(inner), turned, offs).astype(x.dtype)


def vjp(primals, cotangent: mx.array, output: mx.array):
    """Gradients of x and the scales by the fallback; none (zeros) of the codes."""
    x, w, scale, offs = primals
    function = lambda x, scale: [fallback(x, w, scale, offs)]  # noqa: E731
    gx, gscale = mx.vjp(function, [x, scale], [cotangent])[1]
    return gx, mx.zeros_like(w), gscale, mx.zeros_like(offs)


def fp8_grouped(x: mx.array, w: mx.array, scale: mx.array, offs: mx.array) -> mx.array:
    """x[rows of g] @ (w[g] * scale[g]).T with e4m3 expert weights, accumulated in float32.

    x [M, K], float32, float16 or bfloat16, rows sorted by expert; w [E, N, K] e4m3 codes as uint8,
    where 0x7f and 0xff are NaN; offs [E], int32, the ends of the experts' rows as in
    grouped_matmul, read on the device; scale, float32 or bfloat16, multiplies: () or [1] for all
    weights, [E] or [E, 1, 1] for each expert, [E, N, 1] for each output, or
    [E, ceil(N / 128), ceil(K / 128)] for square blocks, the last ones cut off. Returns [M, N] of
    x's dtype, rounded once; rows from offs[-1] on are zero. Raises ValueError for shapes that do
    not fit, TypeError for other dtypes.
    """
    if x.ndim != 2 or w.ndim != 3 or x.shape[1] != w.shape[2]:
        raise ValueError(f"fp8_grouped: x {x.shape} does not fit weights {w.shape} as [E, N, K]")
    groups, n, k = w.shape
    grid = (groups, -(-n // BLOCK), -(-k // BLOCK))
    if scale.shape not in ((), (1,), (groups,), (groups, 1, 1), (groups, n, 1), grid):
        raise ValueError(
            f"fp8_grouped: scale {scale.shape} is not (), {(groups,)}, {(groups, n, 1)} or {grid}"
        )
    if offs.shape != (groups,):
        raise ValueError(f"fp8_grouped: offs {offs.shape} is not {(groups,)}")
    if w.dtype != mx.uint8 or not mx.issubdtype(x.dtype, mx.floating):
        raise TypeError(f"fp8_grouped takes floating x and uint8 codes, not {x.dtype}, {w.dtype}")
    if not mx.issubdtype(scale.dtype, mx.floating) or offs.dtype != mx.int32:
        raise TypeError(
            f"fp8_grouped takes floating scales and int32 offs, not {scale.dtype}, {offs.dtype}"
        )
    return KERNEL(x, w, scale, offs)


def cost(x: mx.array, w: mx.array, scale: mx.array, offs: mx.array) -> Cost:
    """Reads each array once (of the experts no more than rows), writes the result."""
    m, n = x.shape[0], w.shape[1]
    read = (w.nbytes + scale.nbytes) * min(m, w.shape[0]) // max(w.shape[0], 1)
    size = x.nbytes + read + offs.nbytes + m * n * x.itemsize
    return Cost(bytes=size, flops=2 * m * n * x.shape[1])


def nan_experts(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Codes with one NaN of either sign, in two experts."""
    codes = weights(rng, shape)
    codes[0, 1, -1], codes[1, shape[1] // 2, 0] = 0x7F, 0xFF
    return codes


def _case(m, k, n, offs, kind, why, dtype="float32", codes=weights, **spec) -> Case:
    ends = jagged.ends(offs)
    groups = ends.shape[0]
    grid = (groups, -(-n // BLOCK), -(-k // BLOCK))
    shape = {"one": (), "expert": (groups,), "row": (groups, n, 1), "block": grid}[kind]
    arrays = {
        "x": Spec((m, k), **spec),
        "w": Spec((groups, n, k), "uint8", codes),
        "scale": Spec(shape, dtype, scales),
        "offs": ends,
    }
    return Case(arrays, why)


CASES = [
    _case(3, 40, 9, 5, "row", "a few rows, a scale for each output"),
    _case(8, 2048, 130, jagged.ONE_EACH, "block", "Qwen3.6-35B-A3B, one token's experts"),
    _case(6, 512, 300, 9, "block", "its down projection", dtype="bfloat16"),
    _case(7, 301, 45, 9, "expert", "K no multiple of a run: codes read one by one"),
    _case(5, 40, 70, (2, 2, 3, 3, 3, 3), "one", "rows beyond the last expert are zero, few"),
    _case(1, 3, 3, 1, "one", "fewer than 8 rows in constant memory, one expert"),
    _case(70, 2048, 65, (0, 31, 31, 60), "block", "its K, empty experts, rows beyond, a prompt"),
    _case(131, 512, 66, (65, 130), "block", "two large experts, a row beyond", dtype="bfloat16"),
    _case(90, 64, 128, (40, 80), "expert", "tiles of 32 rows, as many as 32 and 8"),
    _case(45, 33, 64, 40, "row", "more experts than a simdgroup has lanes"),
    _case(60, 300, 140, (20, 60), "block", "blocks cut off at every edge"),
    _case(5, 272, 36, (2, 4, 5, 5, 5), "block", "NaN codes, few rows", codes=nan_experts),
    _case(40, 272, 36, (20, 40), "row", "NaN codes, tiled", codes=nan_experts),
    _case(6, 200, 40, (2, 4, 6, 6, 6, 6), "block", "NaN and infinity, few", fill="specials"),
    _case(40, 64, 70, (20, 40), "expert", "NaN and infinity stay in rows", fill="specials"),
    _case(33, 288, 40, (9, 33), "block", "unaligned x", layout="offset"),
]

# Beyond rounding, K up to 2048: as fp8_matmul.
NMSE = {"float32": 4e-12, "float16": 1e-9, "bfloat16": 1e-8}

KERNEL = Kernel(
    "fp8_grouped",
    function=fp8_grouped,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=Metal(VARIANTS, problem, choose, launch, bar=bar),
    cpu="fp8_grouped",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
