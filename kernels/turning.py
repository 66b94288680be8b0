"""MSL of rope: a thread turns one pair of a token, or that pair of several heads of one angle."""

from dataclasses import dataclass
from math import prod
from typing import Any

import mlx.core as mx

from .spec import FALLBACK, Chip, Launch, Program

# A thread owns elements pair and pair + half, whichever form: so neighbouring lanes read and write
# neighbouring elements in the interleaved form too, whose partners share a 128-byte line.
SOURCE = """
    // x, out: [B, H, L, D] or [B, L, H, D]; a thread two elements of `each` heads of a token
    uint pair = thread_position_in_grid.x;
    uint token = thread_position_in_grid.y;
    uint half_width = threads_per_grid.x;
    uint tokens = threads_per_grid.y;
    uint groups = uint(heads + each - 1) / uint(each);
    uint batch = thread_position_in_grid.z / groups;
    uint head = thread_position_in_grid.z % groups * uint(each);
    uint width = uint(dimensions);
    uint own[2], other[2], turn[2];
    float sign[2], c[2], s[2];
    for (uint i = 0; i < 2; i++) {
        own[i] = pair + i * half_width;
        other[i] = INTERLEAVED ? own[i] ^ 1 : pair + (1 - i) * half_width;
        turn[i] = INTERLEAVED ? own[i] / 2 : pair;
        sign[i] = (own[i] < other[i]) != INVERSE ? -1.0f : 1.0f;
    }
    ulong at = ulong(batch) * uint(batch_step) + token;
@ANGLES@
    ulong token_step = HEADS_LAST ? uint(heads) : 1;
    ulong head_step = HEADS_LAST ? 1 : tokens;
    ulong first = ulong(batch) * uint(heads) * tokens + token * token_step;
    for (uint h = head; h < metal::min(head + uint(each), uint(heads)); h++) {
        ulong row = (first + h * head_step) * width;
        float values[2] = {float(x[row + own[0]]), float(x[row + own[1]])};
        for (uint i = 0; i < 2; i++) {
            float partner = INTERLEAVED ? float(x[row + other[i]]) : values[1 - i];
            out[row + own[i]] = T(values[i] * c[i] + sign[i] * (partner * s[i]));
        }
        for (uint i = 2 * half_width + pair; i < width; i += half_width) {
            out[row + i] = x[row + i];
        }
    }
"""

FREQUENCIES = """
    // positions: [streams, B or 1, L], frequencies: [d / 2]; read each by all lanes alike
    float places[3] = {float(positions[at]), 0.0f, 0.0f};
    for (uint stream = 1; SECTIONS > 0 && stream < 3; stream++) {
        places[stream] = float(positions[stream * ulong(stream_step) + at]);
    }
    for (uint i = 0; i < 2; i++) {
        uint f = turn[i];
        float place = places[0];
        if (SECTIONS == 1) {
            place = f < uint(section0) ? place : places[f < uint(section0 + section1) ? 1 : 2];
        } else if (SECTIONS == 2) {
            uint stream = f % 3;
            bool inside = f < 3 * uint(stream == 1 ? section1 : section2);
            place = inside ? places[stream] : place;
        }
        float angle = place * frequencies[f];
        c[i] = metal::precise::cos(angle) * scale;
        s[i] = metal::precise::sin(angle) * scale;
        if (ROUNDED) {
            c[i] = float(T(c[i]));
            s[i] = float(T(s[i]));
        }
    }
"""

TABLES = """
    // cos, sin: [rows, d]
    ulong entry = @ROW@ * ulong(2 * half_width);
    for (uint i = 0; i < 2; i++) {
        c[i] = float(cos[entry + own[i]]);
        s[i] = float(sin[entry + (INVERSE ? other[i] : own[i])]);
        if (ROUNDED) {
            c[i] = float(T(c[i]));
            s[i] = float(T(s[i]));
        }
    }
"""

SHAPES = ("heads", "dimensions", "each", "batch_step")
SECTIONS = ("stream_step", "section0", "section1", "section2", "scale")

PROGRAMS = {
    "frequencies": Program(
        "rope_frequencies",
        ("x", "positions", "frequencies", *SHAPES, *SECTIONS),
        ("out",),
        SOURCE.replace("@ANGLES@", FREQUENCIES),
    ),
    "tables": Program(
        "rope_tables",
        ("x", "cos", "sin", *SHAPES),
        ("out",),
        SOURCE.replace("@ANGLES@", TABLES.replace("@ROW@", "at")),
    ),
    "lookup": Program(
        "rope_lookup",
        ("x", "positions", "cos", "sin", *SHAPES),
        ("out",),
        SOURCE.replace("@ANGLES@", TABLES.replace("@ROW@", "ulong(positions[at])")),
    ),
}

VARIANTS = {
    "head": "a thread turns a pair of one head; few tokens",
    "heads": "a thread turns the pair of up to 8 heads, which share the angle; many tokens",
}

# Heads of a thread, and the tokens from which enough threads remain. Not measured on a Mac.
SHARED_HEADS, MANY_TOKENS = 8, 64


@dataclass(frozen=True)
class Form:
    """What `rope` is asked for; its docstring explains the fields."""

    scale: float = 1.0
    interleaved: bool = False
    sections: tuple[int, ...] = ()
    sections_interleaved: bool = False
    heads_last: bool = False
    rounded: bool = True
    inverse: bool = False


@dataclass(frozen=True)
class Turn:
    """x of `shape` seen as [B, H, L, D] or [B, L, H, D].

    source: "frequencies", "tables" or "lookup". width: how many dimensions turn. rows: positions
    or, without them, rows of the tables: L of them, or L for each of B. table: rows of the tables.
    """

    shape: tuple[int, ...]
    batch: int
    heads: int
    tokens: int
    source: str
    width: int
    rows: int
    table: int
    form: Form
    dtype: mx.Dtype


def problem(
    x: mx.array,
    positions: mx.array | None = None,
    frequencies: mx.array | None = None,
    cos: mx.array | None = None,
    sin: mx.array | None = None,
    **form: Any,
) -> Turn:
    """Describe the call; the shapes fit."""
    asked = Form(**form)
    seen = axes(x.shape, asked.heads_last)
    if frequencies is not None:
        source, width, table = "frequencies", 2 * frequencies.shape[0], 0
    else:
        assert cos is not None
        source = "tables" if positions is None else "lookup"
        width, table = cos.shape[-1], prod(cos.shape[:-1])
    rows = table if positions is None else positions.size // (3 if asked.sections else 1)
    return Turn(x.shape, *seen, source, width, rows, table, asked, x.dtype)


def axes(shape: tuple[int, ...], heads_last: bool) -> tuple[int, int, int]:
    """Batch, heads and tokens of x; axes that x lacks count as one."""
    full = (1,) * (3 - len(shape)) + shape
    heads, tokens = (full[-2], full[-3]) if heads_last else (full[-3], full[-2])
    return prod(full[:-3]), heads, tokens


def choose(turn: Turn, chip: Chip) -> str:
    """Name of the variant; needs no device, so tests can pin it."""
    if turn.dtype not in (mx.float32, mx.float16, mx.bfloat16):
        return FALLBACK
    if 0 in turn.shape or turn.width == 0 or turn.table * turn.width >= 2**31:
        return FALLBACK
    return "heads" if turn.tokens >= MANY_TOKENS and turn.heads > 1 else "head"


def launch(turn: Turn, variant: str) -> list[Launch]:
    """The one dispatch of a variant; ValueError where there is nothing to turn."""
    if 0 in turn.shape or turn.width == 0:
        raise ValueError(f"rope has nothing to turn in {turn.shape}")
    form, half = turn.form, turn.width // 2
    each = min(turn.heads, SHARED_HEADS) if variant == "heads" else 1
    streams = 3 if form.sections else 1
    section = (*form.sections, 0, 0, 0)[:3]
    shapes = {
        "x": turn.shape,
        "positions": (streams, turn.rows),
        "frequencies": (half,),
        "cos": (turn.table, turn.width),
        "sin": (turn.table, turn.width),
    }
    template = [("T", turn.dtype), ("INTERLEAVED", form.interleaved), ("INVERSE", form.inverse)]
    template += [("HEADS_LAST", form.heads_last), ("ROUNDED", form.rounded)]
    if turn.source == "frequencies":
        template.append(("SECTIONS", 0 if streams == 1 else 2 if form.sections_interleaved else 1))
    scalars = {
        "heads": turn.heads,
        "dimensions": turn.shape[-1],
        "each": each,
        "batch_step": 0 if turn.rows == turn.tokens else turn.tokens,
        "stream_step": turn.rows,
        "section0": section[0],
        "section1": section[1],
        "section2": section[2],
        "scale": form.scale,
    }
    program = PROGRAMS[turn.source]
    return [
        Launch(
            program,
            inputs={name: shapes[name] for name in program.inputs if name in shapes},
            outputs={"out": (turn.shape, turn.dtype)},
            grid=(half, turn.tokens, turn.batch * -(-turn.heads // each)),
            threadgroup=(min(half, 128), max(1, 256 // half), 1),
            template=tuple(template),
            scalars={name: scalars[name] for name in program.inputs if name in scalars},
        )
    ]
