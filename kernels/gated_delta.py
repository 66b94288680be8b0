"""The gated delta rule (arXiv:2412.06464): linear attention whose state decays and corrects itself.

For each time t, with S [dk, dv] per value head in float32:
    S <- exp(g_t) S;  delta = beta_t (v_t - k_t S);  S <- S + k_t (outer) delta;  o_t = q_t S.

Few times go step by step with the state in registers. Many go in chunks of 32 times, whose
corrections are one triangular system each, so that matrix products do the work.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from .kernel import Kernel
from .spec import FALLBACK, STREAMING, Case, Chip, Cost, Launch, Metal, Program, Spec

# A step needs k S and q S of the decayed state, one exchange between simdgroups: the new state's
# output is q S + (q k) delta. Two buffers in turn need one barrier a step instead of two.
STEPS = """
    // q, k: [B, T, Hk, dk], v, out: [B, T, Hv, dv], g, beta: [B, T, Hv], state: [B, Hv, dk, dv]
    // A threadgroup 32 columns of one state; simdgroup s its rows s, s + 8, s + 16, ...
    threadgroup float shared[2][2][8][32];
    uint lane = thread_index_in_simdgroup;
    uint s = simdgroup_index_in_threadgroup;
    uint tokens = q_shape[1];
    uint key_heads = q_shape[2];
    uint dk = q_shape[3];
    uint heads = v_shape[2];
    uint dv = v_shape[3];
    uint blocks = (dv + 31) / 32;
    uint head = threadgroup_position_in_grid.z / blocks % heads;
    uint batch = threadgroup_position_in_grid.z / blocks / heads;
    uint column = threadgroup_position_in_grid.z % blocks * 32 + lane;
    ulong matrix = (ulong(batch) * heads + head) * dk * dv + column;
    float rows[ROWS];
    for (uint r = 0; r < ROWS; r++) {
        bool inside = column < dv && s + 8 * r < dk;
        rows[r] = inside ? @STATE@ : 0.0f;
    }
    for (uint t = 0; t < tokens; t++) {
        ulong time = ulong(batch) * tokens + t;
        ulong key = (time * key_heads + head / (heads / key_heads)) * dk;
        // Lane l holds elements l, l + 32, ... of k and q: row s + 8 r is in lane (s + 8 r) % 32.
        float keys[(ROWS + 3) / 4], queries[(ROWS + 3) / 4];
        float kk = 0.0f, qq = 0.0f, qk = 0.0f;
        for (uint j = 0; j < (ROWS + 3) / 4; j++) {
            uint e = lane + 32 * j;
            keys[j] = e < dk ? float(k[key + e]) : 0.0f;
            queries[j] = e < dk ? float(q[key + e]) : 0.0f;
            kk += keys[j] * keys[j];
            qq += queries[j] * queries[j];
            qk += queries[j] * keys[j];
        }
        float key_scale = 1.0f;
        float query_scale = scale;
        if (NORMALISE) {
            key_scale = metal::precise::rsqrt(metal::simd_sum(kk) + 1e-6f);
            query_scale *= metal::precise::rsqrt(metal::simd_sum(qq) + 1e-6f);
        }
        qk = metal::simd_sum(qk) * key_scale * query_scale;
        float decay = metal::precise::exp(float(g[time * heads + head]));
        float memory = 0.0f, read = 0.0f;
        for (uint r = 0; r < ROWS; r++) {
            ushort source = s + 8 * (r % 4);
            rows[r] *= decay;
            memory += metal::simd_shuffle(keys[r / 4], source) * key_scale * rows[r];
            read += metal::simd_shuffle(queries[r / 4], source) * query_scale * rows[r];
        }
        shared[t % 2][0][s][lane] = memory;
        shared[t % 2][1][s][lane] = read;
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        memory = 0.0f;
        read = 0.0f;
        for (uint i = 0; i < 8; i++) {
            memory += shared[t % 2][0][i][lane];
            read += shared[t % 2][1][i][lane];
        }
        ulong at = (time * heads + head) * dv + column;
        float value = column < dv ? float(v[at]) : 0.0f;
        float delta = float(beta[time * heads + head]) * (value - memory);
        for (uint r = 0; r < ROWS; r++) {
            ushort source = s + 8 * (r % 4);
            rows[r] += metal::simd_shuffle(keys[r / 4], source) * key_scale * delta;
        }
        if (s == 0 && column < dv) {
            out[at] = T(read + qk * delta);
        }
    }
    for (uint r = 0; r < ROWS; r++) {
        if (column < dv && s + 8 * r < dk) {
            next[matrix + ulong(s + 8 * r) * dv] = rows[r];
        }
    }
"""

# Tiles of 8 times and 8 elements lie together, so that a simdgroup matrix is two whole lines.
PREPARE = """
    // q, k: [B, T, Hk, dk], queries, keys: [B, Hk, padded / 8, DK / 8, 8, 8] float32, zero beyond
    uint lane = thread_index_in_simdgroup;
    uint row = thread_position_in_grid.y;
    uint tokens = q_shape[1];
    uint heads = q_shape[2];
    uint dk = q_shape[3];
    uint t = row % uint(padded);
    uint head = row / uint(padded) % heads;
    ulong batch = row / uint(padded) / heads;
    ulong from = ((batch * tokens + t) * heads + head) * dk;
    ulong to = ulong(row / 8) * 8 * DK + row % 8 * 8;
    float key[(DK + 31) / 32], query[(DK + 31) / 32];
    float kk = 0.0f, qq = 0.0f;
    for (uint j = 0; j < (DK + 31) / 32; j++) {
        uint e = lane + 32 * j;
        key[j] = t < tokens && e < dk ? float(k[from + e]) : 0.0f;
        query[j] = t < tokens && e < dk ? float(q[from + e]) : 0.0f;
        kk += key[j] * key[j];
        qq += query[j] * query[j];
    }
    float key_scale = 1.0f;
    float query_scale = scale;
    if (NORMALISE) {
        key_scale = metal::precise::rsqrt(metal::simd_sum(kk) + 1e-6f);
        query_scale *= metal::precise::rsqrt(metal::simd_sum(qq) + 1e-6f);
    }
    for (uint j = 0; j < (DK + 31) / 32; j++) {
        uint e = lane + 32 * j;
        if (e < DK) {
            keys[to + e / 8 * 64 + e % 8] = key[j] * key_scale;
            queries[to + e / 8 * 64 + e % 8] = query[j] * query_scale;
        }
    }
"""

# With G the running sum of g in the chunk and L[i, j] = exp(G_i - G_j) for j <= i:
# A = beta_i (k_i k_j) L strictly below the diagonal; inverse = (I + A)^-1; intra = (q_i k_j) L.
SYSTEMS = """
    // inverse, intra: [B, Hv, chunks, 4, 4, 8, 8], in tiles too; a threadgroup a chunk
    threadgroup float system[32][PITCH];
    threadgroup float scores[32][PITCH];
    uint lane = thread_index_in_simdgroup;
    uint s = simdgroup_index_in_threadgroup;
    uint tokens = g_shape[1];
    uint heads = g_shape[2];
    uint key_heads = keys_shape[1];
    uint chunks = keys_shape[2] / 4;
    uint chunk = threadgroup_position_in_grid.z % chunks;
    uint head = threadgroup_position_in_grid.z / chunks % heads;
    uint batch = threadgroup_position_in_grid.z / chunks / heads;
    ulong first = ulong(batch) * key_heads + head / (heads / key_heads);
    first = (first * chunks + chunk) * 32 * DK;
    metal::simdgroup_float8x8 kk[4], qk[4];
    for (uint n = 0; n < 4; n++) {
        kk[n] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        qk[n] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    // The other keys come from threadgroup memory: a transposed load of a buffer is two scattered.
    for (uint base = 0; base < DK; base += 32) {
        metal::simdgroup_float8x8 own_k, own_q[4], other;
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint d = base; d < metal::min(base + 32, uint(DK)); d += 8) {
            metal::simdgroup_load(own_k, keys + first + 8 * (s * DK + d), 8);
            metal::simdgroup_store(own_k, &system[8 * s][d - base], PITCH);
            metal::simdgroup_load(own_q[(d - base) / 8], queries + first + 8 * (s * DK + d), 8);
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint d = 0; d < metal::min(32u, DK - base); d += 8) {
            metal::simdgroup_load(own_k, &system[8 * s][d], PITCH);
            for (uint n = 0; n < 4; n++) {
                metal::simdgroup_load(other, &system[8 * n][d], PITCH, ulong2(0, 0), true);
                metal::simdgroup_multiply_accumulate(kk[n], own_k, other, kk[n]);
                metal::simdgroup_multiply_accumulate(qk[n], own_q[d / 8], other, qk[n]);
            }
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (uint n = 0; n < 4; n++) {
        metal::simdgroup_store(kk[n], &system[8 * s][8 * n], PITCH);
        metal::simdgroup_store(qk[n], &scores[8 * s][8 * n], PITCH);
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint t = 32 * chunk + lane;
    ulong at = (ulong(batch) * tokens + t) * heads + head;
    float sum = metal::simd_prefix_inclusive_sum(t < tokens ? float(g[at]) : 0.0f);
    float rate = t < tokens ? float(beta[at]) : 0.0f;
    // Row i, column lane of tile (s, lane / 8); the columns of all rows are those of this lane.
    ulong matrix = ulong(threadgroup_position_in_grid.z) * 1024 + lane / 8 * 64 + lane % 8;
    for (uint i = 8 * s; i < 8 * s + 8; i++) {
        float own_sum = metal::simd_shuffle(sum, ushort(i));
        float own_rate = metal::simd_shuffle(rate, ushort(i));
        float decay = lane <= i ? metal::precise::exp(own_sum - sum) : 0.0f;
        intra[matrix + 256 * s + 8 * (i % 8)] = scores[i][lane] * decay;
        system[i][lane] = lane < i ? own_rate * system[i][lane] * decay : 0.0f;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    // Lane j solves for column j, from the top; it reads back only what it wrote itself.
    if (s == 0) {
        for (uint i = 0; i < 32; i++) {
            float x = i == lane ? 1.0f : 0.0f;
            for (uint m = 0; m < i; m++) {
                x -= system[i][m] * scores[m][lane];
            }
            scores[i][lane] = x;
            inverse[matrix + 256 * (i / 8) + 8 * (i % 8)] = x;
        }
    }
"""

# The state is held transposed, columns first, so that k is read as it lies in both products.
# For the state S before a chunk: D = inverse (beta (v - exp(G) k S)); o = exp(G) q S + intra D;
# S <- exp(G_last) S + k^T (exp(G_last - G) D).
SCAN = """
    // v, out: [B, T, Hv, dv], state, next: [B, Hv, dk, dv]; a threadgroup 32 columns of one state
    threadgroup float held[32][DK + 4];
    threadgroup float deltas[32][PITCH];
    threadgroup float reads[32][PITCH];
    uint lane = thread_index_in_simdgroup;
    uint s = simdgroup_index_in_threadgroup;
    uint tokens = v_shape[1];
    uint heads = v_shape[2];
    uint dv = v_shape[3];
    uint key_heads = keys_shape[1];
    uint chunks = keys_shape[2] / 4;
    uint blocks = (dv + 31) / 32;
    uint head = threadgroup_position_in_grid.z / blocks % heads;
    uint batch = threadgroup_position_in_grid.z / blocks / heads;
    uint column = threadgroup_position_in_grid.z % blocks * 32 + lane;
    ulong matrix = (ulong(batch) * heads + head) * uint(dk) * dv + column;
    for (uint i = s; i < DK; i += 8) {
        bool inside = column < dv && i < uint(dk);
        held[lane][i] = inside ? @STATE@ : 0.0f;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (uint chunk = 0; chunk < chunks; chunk++) {
        ulong first = ulong(batch) * key_heads + head / (heads / key_heads);
        first = (first * chunks + chunk) * 32 * DK;
        ulong square = ((ulong(batch) * heads + head) * chunks + chunk) * 1024;
        metal::simdgroup_float8x8 a, b, sums[4];
        // k S by the first four simdgroups, q S by the others, 8 times each.
        for (uint n = 0; n < 4; n++) {
            sums[n] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
        for (uint d = 0; d < DK; d += 8) {
            ulong at = first + 8 * (s % 4 * DK + d);
            metal::simdgroup_load(a, (s < 4 ? keys : queries) + at, 8);
            for (uint n = 0; n < 4; n++) {
                metal::simdgroup_load(b, &held[8 * n][d], DK + 4, ulong2(0, 0), true);
                metal::simdgroup_multiply_accumulate(sums[n], a, b, sums[n]);
            }
        }
        for (uint n = 0; n < 4; n++) {
            uint row = 8 * (s % 4);
            threadgroup float* target = s < 4 ? &deltas[row][8 * n] : &reads[row][8 * n];
            metal::simdgroup_store(sums[n], target, PITCH);
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        uint t = 32 * chunk + lane;
        ulong time = (ulong(batch) * tokens + t) * heads + head;
        float sum = metal::simd_prefix_inclusive_sum(t < tokens ? float(g[time]) : 0.0f);
        float rate = t < tokens ? float(beta[time]) : 0.0f;
        float last = metal::simd_shuffle(sum, 31);
        for (uint i = s; i < 32; i += 8) {
            float grown = metal::precise::exp(metal::simd_shuffle(sum, ushort(i)));
            float own_rate = metal::simd_shuffle(rate, ushort(i));
            uint own = 32 * chunk + i;
            ulong at = ((ulong(batch) * tokens + own) * heads + head) * dv + column;
            float value = own < tokens && column < dv ? float(v[at]) : 0.0f;
            deltas[i][lane] = own_rate * (value - grown * deltas[i][lane]);
            reads[i][lane] *= grown;
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        // Two tiles a simdgroup from here on; the matrices are zero above the diagonal.
        uint row = 8 * (s / 2);
        uint tile = 16 * (s % 2);
        for (uint n = 0; n < 2; n++) {
            sums[n] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
        for (uint m = 0; m <= row; m += 8) {
            metal::simdgroup_load(a, inverse + square + row * 32 + 8 * m, 8);
            for (uint n = 0; n < 2; n++) {
                metal::simdgroup_load(b, &deltas[m][tile + 8 * n], PITCH);
                metal::simdgroup_multiply_accumulate(sums[n], a, b, sums[n]);
            }
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint n = 0; n < 2; n++) {
            metal::simdgroup_store(sums[n], &deltas[row][tile + 8 * n], PITCH);
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint n = 0; n < 2; n++) {
            metal::simdgroup_load(sums[n], &reads[row][tile + 8 * n], PITCH);
        }
        for (uint m = 0; m <= row; m += 8) {
            metal::simdgroup_load(a, intra + square + row * 32 + 8 * m, 8);
            for (uint n = 0; n < 2; n++) {
                metal::simdgroup_load(b, &deltas[m][tile + 8 * n], PITCH);
                metal::simdgroup_multiply_accumulate(sums[n], a, b, sums[n]);
            }
        }
        for (uint n = 0; n < 2; n++) {
            metal::simdgroup_store(sums[n], &reads[row][tile + 8 * n], PITCH);
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint i = s; i < 32; i += 8) {
            uint own = 32 * chunk + i;
            ulong at = ((ulong(batch) * tokens + own) * heads + head) * dv + column;
            if (own < tokens && column < dv) {
                out[at] = T(reads[i][lane]);
            }
            deltas[i][lane] *= metal::precise::exp(last - metal::simd_shuffle(sum, ushort(i)));
        }
        float decay = metal::precise::exp(last);
        for (uint i = s; i < 32; i += 8) {
            for (uint j = lane; j < DK; j += 32) {
                held[i][j] *= decay;
            }
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint d = 8 * s; d < DK; d += 64) {
            for (uint n = 0; n < 4; n++) {
                metal::simdgroup_load(sums[n], &held[8 * n][d], DK + 4);
            }
            for (uint m = 0; m < 32; m += 8) {
                metal::simdgroup_load(b, keys + first + m * DK + 8 * d, 8);
                for (uint n = 0; n < 4; n++) {
                    metal::simdgroup_load(a, &deltas[m][8 * n], PITCH, ulong2(0, 0), true);
                    metal::simdgroup_multiply_accumulate(sums[n], a, b, sums[n]);
                }
            }
            for (uint n = 0; n < 4; n++) {
                metal::simdgroup_store(sums[n], &held[8 * n][d], DK + 4);
            }
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
    for (uint i = s; i < uint(dk); i += 8) {
        if (column < dv) {
            next[matrix + ulong(i) * dv] = held[lane][i];
        }
    }
"""

CHUNK = 32

# Floats from row to row of a 32x32 buffer: four more, or a matrix's rows share their banks.
PITCH = CHUNK + 4
HEADER = f"constant constexpr uint PITCH = {PITCH};"

ARRAYS = ("q", "k", "v", "g", "beta")


def _program(name: str, inputs: tuple[str, ...], source: str, row: str, state: bool) -> Program:
    text = f"state[matrix + ulong({row}) * dv]" if state else "0.0f"
    names = (*inputs, "state") if state else inputs
    suffix = "_state" if state else ""
    source = source.replace("@STATE@", text)
    return Program(name + suffix, names, ("out", "next"), source, HEADER)


STEPS_PROGRAMS = {
    state: _program("gated_delta_steps", (*ARRAYS, "scale"), STEPS, "s + 8 * r", state)
    for state in (False, True)
}
PREPARE_PROGRAM = Program(
    "gated_delta_prepare", ("q", "k", "scale", "padded"), ("queries", "keys"), PREPARE
)
SYSTEMS_PROGRAM = Program(
    "gated_delta_systems", ("queries", "keys", "g", "beta"), ("inverse", "intra"), SYSTEMS, HEADER
)
SCAN_INPUTS = ("queries", "keys", "v", "g", "beta", "inverse", "intra", "dk")
SCAN_PROGRAMS = {
    state: _program("gated_delta_scan", SCAN_INPUTS, SCAN, "i", state) for state in (False, True)
}

VARIANTS = {
    "steps": "time by time, the state in registers; decoding",
    "chunks": "32 times at once by matrix products, in three dispatches; prompts",
}

# Chunks pay once a step's barrier and its vector work cost more than the systems. Not measured.
MANY_TOKENS = 64

# What fits 32 KB beside two 32x32 buffers; 32 rows in a thread's registers.
MOST_CHUNKED_ROWS, MOST_ROWS = 176, 256


@dataclass(frozen=True)
class Rule:
    """The call by its axes; `state` says whether one is given."""

    batch: int
    tokens: int
    key_heads: int
    heads: int
    dk: int
    dv: int
    state: bool
    normalise: bool
    scale: float
    dtype: mx.Dtype


def problem(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    *,
    normalise: bool,
    scale: float | None,
) -> Rule:
    """Describe the call; the shapes fit."""
    batch, tokens, key_heads, dk = q.shape
    heads, dv = v.shape[2:]
    scale = _scale(dk, scale)
    return Rule(
        batch, tokens, key_heads, heads, dk, dv, state is not None, normalise, scale, q.dtype
    )


def _scale(dk: int, scale: float | None) -> float:
    return max(dk, 1) ** -0.5 if scale is None else scale


def choose(rule: Rule, chip: Chip) -> str:
    """Name of the variant; needs no device, so tests can pin it."""
    if rule.dtype not in (mx.float32, mx.float16, mx.bfloat16) or rule.dk > MOST_ROWS:
        return FALLBACK
    if 0 in (rule.batch, rule.tokens, rule.heads, rule.dk, rule.dv):
        return FALLBACK
    if rule.tokens >= MANY_TOKENS and rule.dk <= MOST_CHUNKED_ROWS:
        return "chunks"
    return "steps"


def bar(problem, variant: str) -> float | None:
    """Chunks hand their systems from dispatch to dispatch, which has no bar."""
    return STREAMING if variant == "steps" else None


def launch(rule: Rule, variant: str) -> list[Launch]:
    """The dispatches of a variant; ValueError where it cannot serve the problem."""
    if 0 in (rule.batch, rule.tokens, rule.heads, rule.dk, rule.dv):
        raise ValueError("gated_delta has no times, heads or rows to work on")
    most = MOST_CHUNKED_ROWS if variant == "chunks" else MOST_ROWS
    if rule.dk > most:
        raise ValueError(f"{variant} holds {most} rows of state, not {rule.dk}")
    return _chunks(rule) if variant == "chunks" else [_steps(rule)]


def _shapes(rule: Rule) -> dict[str, tuple[int, ...]]:
    times = (rule.batch, rule.tokens)
    keys, values = (*times, rule.key_heads, rule.dk), (*times, rule.heads, rule.dv)
    state = (rule.batch, rule.heads, rule.dk, rule.dv)
    gates = (*times, rule.heads)
    return {"q": keys, "k": keys, "v": values, "g": gates, "beta": gates, "state": state}


def _steps(rule: Rule) -> Launch:
    shapes, program = _shapes(rule), STEPS_PROGRAMS[rule.state]
    rows = -(-rule.dk // 8)
    return Launch(
        program,
        inputs={name: shapes[name] for name in program.inputs if name in shapes},
        outputs={"out": (shapes["v"], rule.dtype), "next": (shapes["state"], mx.float32)},
        grid=(32, 8, rule.batch * rule.heads * -(-rule.dv // 32)),
        threadgroup=(32, 8, 1),
        template=(("T", rule.dtype), ("ROWS", rows), ("NORMALISE", rule.normalise)),
        threadgroup_bytes=2 * 2 * 8 * 32 * 4,
        scalars={"scale": rule.scale},
    )


def _chunks(rule: Rule) -> list[Launch]:
    shapes = _shapes(rule)
    chunks, width = -(-rule.tokens // CHUNK), 8 * -(-rule.dk // 8)
    padded = CHUNK * chunks
    keys = (rule.batch, rule.key_heads, padded // 8, width // 8, 64)
    square = (rule.batch, rule.heads, chunks, CHUNK, CHUNK)
    shapes |= {"queries": keys, "keys": keys, "inverse": square, "intra": square}
    scan = SCAN_PROGRAMS[rule.state]
    return [
        Launch(
            PREPARE_PROGRAM,
            inputs={name: shapes[name] for name in ("q", "k")},
            outputs={name: (keys, mx.float32) for name in ("queries", "keys")},
            grid=(32, rule.batch * padded * rule.key_heads, 1),
            threadgroup=(32, 8, 1),
            template=(("DK", width), ("NORMALISE", rule.normalise)),
            scalars={"scale": rule.scale, "padded": padded},
        ),
        Launch(
            SYSTEMS_PROGRAM,
            inputs={name: shapes[name] for name in SYSTEMS_PROGRAM.inputs},
            outputs={name: (square, mx.float32) for name in ("inverse", "intra")},
            grid=(32, 4, rule.batch * rule.heads * chunks),
            threadgroup=(32, 4, 1),
            template=(("DK", width),),
            threadgroup_bytes=2 * CHUNK * PITCH * 4,
        ),
        Launch(
            scan,
            inputs={name: shapes[name] for name in scan.inputs if name in shapes},
            outputs={"out": (shapes["v"], rule.dtype), "next": (shapes["state"], mx.float32)},
            grid=(32, 8, rule.batch * rule.heads * -(-rule.dv // 32)),
            threadgroup=(32, 8, 1),
            template=(("T", rule.dtype), ("DK", width)),
            threadgroup_bytes=(width + 4 + 2 * PITCH) * CHUNK * 4,
            scalars={"dk": rule.dk},
        ),
    ]


def reference(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    g: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray | None = None,
    *,
    normalise: bool,
    scale: float | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The recurrence in float64."""
    batch, tokens, key_heads, dk = q.shape
    heads, dv = v.shape[2:]
    q, k = (np.repeat(np.asarray(x, np.float64), heads // key_heads, axis=2) for x in (q, k))
    if normalise:
        q, k = (x / np.sqrt(np.square(x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    q = q * _scale(dk, scale)
    held = np.zeros((batch, heads, dk, dv)) if state is None else np.array(state, np.float64)
    out = np.zeros(v.shape)
    for t in range(tokens):
        held = held * np.exp(g[:, t])[..., None, None]
        memory = np.einsum("bhk,bhkv->bhv", k[:, t], held)
        delta = beta[:, t, :, None] * (v[:, t] - memory)
        held = held + k[:, t, ..., None] * delta[:, :, None, :]
        out[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t], held)
    return out, held


# From here on the fallback works in chunks: a step takes six operations, a chunk's system 62 for
# all chunks together, and eight more each.
FALLBACK_STEPS = 16


def fallback(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    *,
    normalise: bool,
    scale: float | None,
) -> tuple[mx.array, mx.array]:
    """Step by step, or in chunks, in float32."""
    dtype, (heads, dv) = q.dtype, v.shape[2:]
    batch, tokens, key_heads, dk = q.shape
    wide = mx.float64 if dtype == mx.float64 else mx.float32
    q, k, v, g, beta = (x.astype(wide).swapaxes(1, 2) for x in (q, k, v, g, beta))
    if normalise:
        q, k = (x * mx.rsqrt(x.square().sum(axis=-1, keepdims=True) + 1e-6) for x in (q, k))
    q = q * _scale(dk, scale)
    if heads != key_heads:
        q, k = (mx.repeat(x, heads // key_heads, axis=1) for x in (q, k))
    if state is None:
        state = mx.zeros((batch, heads, dk, dv), wide)
    state = state.astype(wide)
    if 0 in v.shape or dk == 0:
        out = mx.zeros(v.shape, wide)
    else:
        walk = _by_steps if tokens < FALLBACK_STEPS else _by_chunks
        out, state = walk(q, k, v, g, beta, state)
    kept = mx.float64 if dtype == mx.float64 else mx.float32
    return out.swapaxes(1, 2).astype(dtype), state.astype(kept)


def _by_steps(q, k, v, g, beta, state):
    """q, k [B, H, T, dk], v [B, H, T, dv], g, beta [B, H, T], state [B, H, dk, dv]."""
    outs, decay = [], mx.exp(g)
    for t in range(q.shape[2]):
        key = k[:, :, t : t + 1]
        state = state * decay[:, :, t, None, None]
        delta = beta[:, :, t, None, None] * (v[:, :, t : t + 1] - key @ state)
        state = state + key.swapaxes(-1, -2) * delta
        outs.append(q[:, :, t : t + 1] @ state)
    return mx.concatenate(outs, axis=2), state


def _by_chunks(q, k, v, g, beta, state):
    """The same, as the chunk programs do."""
    tokens, padding = q.shape[2], -q.shape[2] % CHUNK
    chunks = (tokens + padding) // CHUNK

    def cut(x):
        x = mx.pad(x, [(0, 0), (0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 3))
        return x.reshape(*x.shape[:2], chunks, CHUNK, *x.shape[3:])

    q, k, v, sums, beta = cut(q), cut(k), cut(v), mx.cumsum(cut(g), axis=-1), cut(beta)[..., None]
    times = mx.arange(CHUNK)
    lower = times[:, None] >= times
    gaps = sums[..., :, None] - sums[..., None, :]
    decay = mx.exp(mx.where(lower, gaps, mx.array(-mx.inf, gaps.dtype)))
    kt = k.swapaxes(-1, -2)
    intra = (q @ kt) * decay
    inverse = _inverse(mx.where(times[:, None] > times, beta * (k @ kt) * decay, 0.0))
    grown, last = mx.exp(sums)[..., None], sums[..., -1:]
    # Row i of the corrections is scaled for the end of the chunk, when the state is updated.
    rest = mx.exp(last - sums)[..., None]
    final = mx.exp(last)[..., None]
    outs = []
    for c in range(chunks):
        known = grown[:, :, c] * (k[:, :, c] @ state)
        deltas = inverse[:, :, c] @ (beta[:, :, c] * (v[:, :, c] - known))
        outs.append(grown[:, :, c] * (q[:, :, c] @ state) + intra[:, :, c] @ deltas)
        state = final[:, :, c] * state + kt[:, :, c] @ (rest[:, :, c] * deltas)
    return mx.concatenate(outs, axis=2)[:, :, :tokens], state


def _inverse(a: mx.array) -> mx.array:
    """(I + a)^-1 for strictly lower triangular a, by elimination.

    Not by the product of I + (-a)^(2^i): with equal keys its terms reach 1e8 and cancel.
    """
    x = mx.broadcast_to(mx.eye(CHUNK, dtype=a.dtype), a.shape)
    for j in range(CHUNK - 1):
        x = x - a[..., :, j : j + 1] * x[..., j : j + 1, :]
    return x


def gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    *,
    normalise: bool = True,
    scale: float | None = None,
) -> tuple[mx.array, mx.array]:
    """o_t = q_t S_t with S_t = exp(g_t) S_{t-1} + k_t (outer) beta_t (v_t - k_t exp(g_t) S_{t-1}).

    q, k [B, T, Hk, dk] and v [B, T, Hv, dv] of one floating dtype; Hv a multiple of Hk, each key
    head serves Hv / Hk consecutive value heads. g [B, T, Hv], the logarithm of the decay, not
    above 0, and beta [B, T, Hv] in any floating dtypes. state [B, Hv, dk, dv], float32, or None
    for zeros. normalise: q and k are divided by their length, x * rsqrt(sum(x^2) + 1e-6). scale:
    of q, after that; dk^-0.5 by default.
    Returns o [B, T, Hv, dv] in v's dtype and the state after T, float32; all is computed in
    float32 and o rounded once. A call continues exactly where the state was returned. Raises
    ValueError for shapes that do not fit, TypeError for dtypes. arXiv:2412.06464.
    """
    if q.ndim != 4 or k.shape != q.shape or v.ndim != 4 or v.shape[:2] != q.shape[:2]:
        raise ValueError(f"gated_delta: q {q.shape}, k {k.shape} and v {v.shape} do not fit")
    batch, _, key_heads, dk = q.shape
    heads, dv = v.shape[2:]
    if key_heads == 0 or heads % key_heads:
        raise ValueError(f"gated_delta: {key_heads} key heads cannot serve {heads} value heads")
    for name, gate in (("g", g), ("beta", beta)):
        if gate.shape != v.shape[:3]:
            raise ValueError(f"gated_delta: {name} is {gate.shape}, not {v.shape[:3]}")
    if state is not None and state.shape != (batch, heads, dk, dv):
        raise ValueError(f"gated_delta: state is {state.shape}, not {(batch, heads, dk, dv)}")
    _check_dtypes(q, k, v, g, beta, state)
    return KERNEL(q, k, v, g, beta, state, normalise=normalise, scale=scale)


def _check_dtypes(q, k, v, g, beta, state) -> None:
    if not (q.dtype == k.dtype == v.dtype and mx.issubdtype(q.dtype, mx.floating)):
        raise TypeError(f"gated_delta: q, k, v are {q.dtype}, {k.dtype}, {v.dtype}")
    if not all(mx.issubdtype(gate.dtype, mx.floating) for gate in (g, beta)):
        raise TypeError(f"gated_delta: g and beta are {g.dtype} and {beta.dtype}")
    kept = mx.float64 if q.dtype == mx.float64 else mx.float32
    if state is not None and state.dtype != kept:
        raise TypeError(f"gated_delta: state is {state.dtype}, not {kept}: less corrupts it")


def cost(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    *,
    normalise: bool,
    scale: float | None,
) -> Cost:
    """Reads each array, writes o and the state, once; three products of a state's size a time."""
    kept = q.shape[0] * v.shape[2] * q.shape[3] * v.shape[3]
    read = q.nbytes + k.nbytes + 2 * v.nbytes + g.nbytes + beta.nbytes
    moved = read + 4 * kept * (1 if state is None else 2)
    return Cost(bytes=moved, flops=7 * kept * q.shape[1])


def decays(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """-exp(A) softplus(a) as in a model: heads from forgetful to long-remembering."""
    rates = np.exp(rng.uniform(np.log(0.01), np.log(16.0), shape[-1:]))
    return -rates * np.log1p(np.exp(rng.standard_normal(shape)))


def rates(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A sigmoid's values."""
    return 1 / (1 + np.exp(-rng.standard_normal(shape)))


def lasting(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Almost no decay."""
    return -1e-3 * rng.random(shape)


def full(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Each time replaces what its key reads."""
    return np.ones(shape)


def alike(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """The same key at all times, as repeated tokens give."""
    return np.broadcast_to(rng.standard_normal((shape[0], 1, *shape[2:])), shape)


def _case(
    axes: tuple[int, int, int, int, int, int],
    why: str,
    state: bool = True,
    key: Any = "normal",
    decay: Any = decays,
    rate: Any = rates,
    layout: str = "contiguous",
    normalise: bool = True,
    scale: float | None = None,
    size: float = 1.0,
) -> Case:
    batch, tokens, key_heads, heads, dk, dv = axes
    keys, gates = (batch, tokens, key_heads, dk), (batch, tokens, heads)
    arrays = {
        "q": Spec(keys, layout=layout, scale=size),
        "k": Spec(keys, layout=layout, fill=key, scale=size),
        "v": Spec((batch, tokens, heads, dv), layout=layout),
        "g": Spec(gates, "float32", decay),
        "beta": Spec(gates, fill=rate),
    }
    if state:
        arrays["state"] = Spec((batch, heads, dk, dv), "float32")
    return Case(arrays, why, {"normalise": normalise, "scale": scale})


CASES = [
    _case((1, 1, 4, 8, 128, 128), "Qwen3.6-35B-A3B, one token, a quarter of its heads"),
    _case((1, 70, 1, 2, 128, 128), "its prompt, one key head", state=False),
    _case((2, 5, 1, 2, 128, 64), "a few times, no state before", state=False),
    _case((2, 67, 2, 2, 16, 40), "chunks not whole, a head for each, a state before"),
    _case((1, 96, 1, 3, 20, 33), "whole chunks, ragged rows and columns"),
    _case((1, 64, 1, 1, 176, 8), "as many rows as a chunk holds"),
    _case((1, 3, 1, 1, 250, 5), "more rows than a chunk holds, few columns"),
    _case((1, 65, 1, 1, 200, 5), "many times, too many rows for chunks"),
    _case(
        (1, 100, 1, 1, 32, 32), "equal keys, hardly a decay", key=alike, decay=lasting, rate=full
    ),
    _case((1, 20, 1, 2, 24, 16), "the fallback's chunks, the kernel's steps"),
    _case((2, 4, 1, 2, 12, 7), "not normalised", normalise=False, scale=1.0, size=0.3),
    _case((1, 70, 1, 1, 12, 7), "chunks not normalised", normalise=False, scale=0.5, size=0.3),
    _case((1, 1, 1, 1, 2, 2), "all arrays in constant memory"),
    _case((1, 2, 1, 3, 1, 1), "one row, one column"),
    _case((1, 6, 2, 4, 10, 12), "transposed in memory", layout="transposed"),
    _case((1, 66, 2, 4, 10, 12), "starts one element into its buffer", layout="offset"),
    _case((1, 6, 2, 4, 10, 12), "every other element of a buffer", layout="strided"),
]

# Beyond rounding: sums of up to 250 terms, and of 100 times of corrections. Half types compute in
# float32; o is rounded once.
NMSE = {"float32": 1e-12, "float16": 1e-9, "bfloat16": 1e-8}

KERNEL = Kernel(
    "gated_delta",
    function=gated_delta,
    reference=reference,
    fallback=fallback,
    vjp=None,
    metal=Metal(VARIANTS, problem, choose, launch, outputs=("out", "next"), bar=bar),
    cpu=None,
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
