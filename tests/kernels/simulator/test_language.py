"""The Metal language and its library: each expression against its value, in a fast run."""

import mlx.core as mx
import numpy as np
import pytest

INF, NAN = float("inf"), float("nan")

# Expressions of float; o, t, f are 1, 2.5 and -3.75, unknown to the compiler.
FLOATS = {
    "0.1 + o": np.float32(0.1) + np.float32(1),
    "o / 3": np.float32(1) / np.float32(3),
    "float(half(o / 3))": np.float16(np.float32(1) / np.float32(3)),
    "float(bfloat(o / 3))": 0.333984375,
    "float(half(2048 * o) + half(o))": 2048,
    "float(half(2048 * o) + half(o) + half(o))": 2048,
    "float(bfloat(256 * o) + bfloat(o) + bfloat(o))": 256,
    "sizeof(float3) + sizeof(packed_float3) + sizeof(half4) + sizeof(long) + sizeof(bool4)": 48,
    "fast::exp(t) + precise::exp(t) - 2 * metal::exp(t)": 0,
    "exp(t)": np.exp(np.float32(2.5)),
    "exp2(t) + exp10(o) + log2(t) + log10(t)": 2**2.5 + 10 + np.log2(2.5) + np.log10(2.5),
    "rsqrt(4 * o) + sqrt(4 * o)": 2.5,
    "sinpi(o / 2) + cospi(o)": 0,
    "fmax(0, t) + fmin(t, 1.0f)": 3.5,
    "max(t, NAN) + fmin(NAN, o)": 3.5,
    "clamp(f, -1.0f, o) + saturate(t) + sign(f)": -1,
    "round(t) + rint(t) + trunc(f) + floor(f) + ceil(f) + fract(f)": 3 + 2 - 3 - 4 - 3 + 0.25,
    "fmod(f, t) + copysign(t, f) + fabs(f) + abs(f)": -1.25 - 2.5 + 7.5,
    "fma(t, t, o) + mix(o, t, 0.5f) + step(o, t)": 7.25 + 1.75 + 1,
    "pow(t, 2.0f) + powr(t, 2.0f) + atan2(o, o)": 12.5 + np.pi / 4,
    "ldexp(t, 3)": 20,
    "float(isnan(NAN * o)) + 2 * float(isinf(INFINITY)) + 4 * float(isfinite(t))": 7,
    "float(signbit(f))": 1,
    "select(o, t, f < 0)": 2.5,
    "dot(float3(o, t, f), float3(1, 2, 4))": 1 + 5 - 15,
    "length(float2(3 * o, 4)) + distance(float2(o), float2(1)) + cross(float3(o,0,0), "
    "float3(0,1,0)).z": 6,
    "float4(o, t, f, 4).wzyx[0]": 4,
    "float4(float2(o, t), float2(f)).w": -3.75,
    "float4(int4(int(t))).y + ((float4)int4(3)).x": 5,
    "(float4(o) * 2 + float4(1, 2, 3, 4)).w": 6,
    "(-float4(t)).x + (2.0f / float2(o, t)).y": -2.5 + 0.8,
    "float(all(float2(o, t) < float2(2, 3))) + float(any(int2(0, 0) == 1))": 1,
    "vec<float, 4>(float3(t), o).z": 2.5,
    "max(float4(o), 2.0f).x + clamp(float4(t), 0.0f, 1.0f).y": 3,
    "as_type<float>(0x40200000u)": 2.5,
    "float(as_type<ushort>(half(o)))": 0x3C00,
    "float(as_type<uint2>(0x500000003ul).y)": 5,
    "float(min(-3, 2) + max(3u, 4u) + int(abs(-5)))": 6,
    "float(popcount(255u) + clz(1u) + ctz(8u) + clz(uchar(1)))": 8 + 31 + 3 + 7,
    "float(reverse_bits(1u) >> 31) + float(rotate(0x80000001u, 1u))": 4,
    "float(extract_bits(0xABCDu, 4, 8)) + float(insert_bits(0u, 7u, 2, 2))": 0xBC + 12,
    "float(extract_bits(-1, 3, 4))": -1,
    "float(mulhi(0x80000000u, 6u)) + float(mulhi(-4, 1))": 2,
    "float(uchar(200) + uchar(100)) + float(ushort(65535) + ushort(1))": 300 + 65536,
    "float(1u << 31 >> 31) + float(-7 / 2) + float(-7 % 3)": 1 - 3 - 1,
    "numeric_limits<float>::epsilon() * 8388608 + float(numeric_limits<half>::max())": 65505,
    "Limits<float>::max + o": INF,
    "float(Limits<int8_t>::min) + float(Limits<uint>::min) + float(Limits<uchar>::max)": 127,
    "log1p(1e-8 * o) * 1e8": 1,
    "hypot(3 * o, 4.0f)": 5,
    "float(ceildiv(7, 2))": 4,
    "(complex64_t(o, t) * complex64_t(2, 1)).imag": 6,
    "simdgroup_size_of(o)": 32,
    "INFINITY - INFINITY": NAN,
}
HEADER = """
inline float simdgroup_size_of(float one) { return simd_sum(one); }
"""


def test_expressions(run):
    """All in one kernel; results in float32, to a few units in the last place."""
    lines = [f"y[{i} * 32 + lane] = {text};" for i, text in enumerate(FLOATS)]
    source = (
        "uint lane = thread_index_in_simdgroup;\nfloat o = x[0], t = x[1], f = x[2];\n"
        + "\n".join(lines)
    )
    x = mx.array([1, 2.5, -3.75] + 29 * [0.0], mx.float32)
    result = run(source, x, shape=(len(FLOATS), 32), grid=(32, 1, 1), mode="fast", header=HEADER)
    got = np.array(result.outputs[0])
    for row, (text, want) in zip(got, FLOATS.items(), strict=True):
        np.testing.assert_allclose(row, np.full(32, want), rtol=3e-6, atol=1e-6, err_msg=text)


LANES = np.arange(32)
# Expressions of v, each lane's x = lane, and what the lanes receive.
SIMDGROUP = {
    "simd_sum(v)": np.full(32, 496),
    "simd_max(v) + simd_min(v)": np.full(32, 31),
    "simd_product(v + 1 > 2 ? 1.0f : v + 1)": np.full(32, 2),
    "float(simd_or(1u << lane % 4)) + float(simd_and(7u)) + float(simd_xor(lane))": np.full(32, 22),
    "simd_prefix_inclusive_sum(v)": np.cumsum(LANES),
    "simd_prefix_exclusive_sum(v)": np.cumsum(LANES) - LANES,
    "simd_broadcast(v, 5) + simd_broadcast_first(v)": np.full(32, 5),
    "simd_shuffle(v, 31 - lane)": LANES[::-1],
    "simd_shuffle_xor(v, 3)": LANES ^ 3,
    "lane < 30 ? simd_shuffle_down(v, 2) : simd_shuffle_down(v, 0)": None,
    "simd_shuffle_rotate_down(v, 3)": (LANES + 3) % 32,
    "simd_shuffle_rotate_up(v, 3)": (LANES - 3) % 32,
    "simd_shuffle_and_fill_down(v, 100 + v, 2)": np.where(LANES < 30, LANES + 2, 70 + LANES),
    "simd_shuffle_and_fill_up(v, 100 + v, 2)": np.where(LANES >= 2, LANES - 2, 130 + LANES),
    "quad_sum(v) + quad_max(v)": LANES // 4 * 4 * 5 + 6 + 3,
    "quad_broadcast(v, 1) + quad_shuffle_xor(v, 2)": LANES // 4 * 4 + 1 + (LANES ^ 2),
    "float(simd_all(v < 32)) + 2 * float(simd_any(v > 30)) + 4 * float(simd_any(v > 31))": (
        np.full(32, 3)
    ),
    "float(ulong(simd_ballot(v < 3)))": np.full(32, 7),
    "simd_sum(float4(v, 1, 2, 3)).z": np.full(32, 64),
    "float(simd_sum(half(v)))": np.full(32, 496),
    "float(simd_shuffle(ulong(v) << 40, 3) >> 40)": np.full(32, 3),
    "float(simd_is_first())": LANES == 0,
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 5])
def test_simdgroup_functions(run, seed):
    """Two simdgroups, so that neither sees the other."""
    wanted = {text: want for text, want in SIMDGROUP.items() if want is not None}
    lines = [f"y[{64 * i} + thread] = {text};" for i, text in enumerate(wanted)]
    source = (
        "uint lane = thread_index_in_simdgroup, thread = thread_index_in_threadgroup;\n"
        "float v = float(lane);\n" + "\n".join(lines).replace("thread]", "index]")
    ).replace("thread = thread_index", "index = thread_index")
    x = mx.zeros((64,))
    options = {"shape": (len(wanted), 2, 32), "grid": (64, 1, 1), "threadgroup": (64, 1, 1)}
    for mode in ("fast", "checked"):
        result = run(source, x, mode=mode, seed=seed, **options)
        assert result.reports == ()
        for rows, (text, want) in zip(np.array(result.outputs[0]), wanted.items(), strict=True):
            np.testing.assert_array_equal(rows, np.stack([want, want]), err_msg=text)


def test_thread_attributes(run):
    """A grid that threadgroups do not divide: the last ones are smaller, as on a Mac."""
    names = {
        "thread_position_in_grid": (20, 6, 4),
        "thread_position_in_threadgroup": (0, 2, 0),
        "threadgroup_position_in_grid": (2, 1, 2),
        "threadgroups_per_grid": (3, 2, 3),
        "threads_per_grid": (21, 7, 5),
        "threads_per_threadgroup": (1, 3, 1),
        "dispatch_threads_per_threadgroup": (10, 4, 2),
    }
    single = {
        "thread_index_in_threadgroup": 2,
        "thread_index_in_simdgroup": 2,
        "simdgroup_index_in_threadgroup": 0,
        "simdgroups_per_threadgroup": 1,
        "dispatch_simdgroups_per_threadgroup": 3,
        "threads_per_simdgroup": 32,
        "thread_execution_width": 32,
        "quadgroup_index_in_threadgroup": 0,
    }
    lines = [f"y[{3 * i}] = {n}.x; y[{3 * i + 1}] = {n}.y; y[{3 * i + 2}] = {n}.z;"
             for i, n in enumerate(names)]  # fmt: skip
    lines += [f"y[{21 + i}] = {name};" for i, name in enumerate(single)]
    chosen = "if (all(thread_position_in_grid == uint3(20, 6, 4))) {\n"
    source = chosen + "\n".join(lines) + "\n}"
    result = run(source, mx.zeros((8,)), shape=(29,), dtype=mx.uint32,
                 grid=(21, 7, 5), threadgroup=(10, 4, 2))  # fmt: skip
    assert result.reports == ()
    want = [value for triple in names.values() for value in triple] + list(single.values())
    assert result.outputs[0].tolist() == want
    assert (result.threads, result.threadgroups) == (21 * 7 * 5, 3 * 2 * 3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_matrices(run, dtype):
    """a @ b.T + c by simdgroup_matrix, b read transposed, through threadgroup memory."""
    rng = np.random.default_rng(0)
    a, b, c = (
        mx.array(rng.integers(-4, 5, (8, 8)).astype(np.float32)).astype(getattr(mx, dtype))
        for _ in range(3)
    )
    kind = {"float32": "float", "float16": "half", "bfloat16": "bfloat"}[dtype]
    source = f"""
        threadgroup {kind} s[64];
        for (uint i = thread_index_in_simdgroup; i < 64; i += 32) s[i] = x[i];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_matrix<{kind}, 8, 8> left, right;
        simdgroup_matrix<float, 8, 8> sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        simdgroup_load(left, s, 8);
        simdgroup_load(right, a, 8, ulong2(0, 0), true);
        simdgroup_multiply_accumulate(sum, left, right, sum);
        sum.thread_elements()[0] *= 2;
        sum.thread_elements()[1] *= 2;
        simdgroup_store(sum, y, 8);"""
    result = run(source, a, b, dtype=mx.float32, grid=(32, 1, 1), threadgroup=(32, 1, 1))
    assert result.reports == ()
    want = 2 * np.array(a.astype(mx.float32)) @ np.array(b.astype(mx.float32)).T
    np.testing.assert_array_equal(result.outputs[0], want)


def test_packed_types_and_structs(run):
    source = """
        struct Pair { half a; packed_half3 b; };
        uint i = thread_position_in_grid.x;
        Pair p = ((const device Pair*)x)[i];
        p.b[0] += p.a;
        ((device Pair*)y)[i] = p;"""
    x = mx.arange(64).astype(mx.float16)
    result = run(source, x, grid=(16, 1, 1))
    assert result.reports == ()
    want = np.arange(64, dtype=np.float32).reshape(16, 4)
    want[:, 1] += want[:, 0]
    np.testing.assert_array_equal(result.outputs[0].astype(mx.float32), want.reshape(-1))


DTYPES = "int8 uint8 int16 uint16 int32 uint32 int64 uint64 bool_ float16 bfloat16 complex64"


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_every_dtype_goes_through(run, dtype):
    x = mx.arange(40).astype(getattr(mx, dtype))
    source = "uint i = thread_position_in_grid.x; y[i] = x[i];"
    result = run(source, x)
    assert (result.reports, result.outputs[0].dtype) == ((), x.dtype)
    assert mx.array_equal(result.outputs[0], x).item()


def test_rounding_to_bfloat_is_to_nearest_even(run):
    values = [1.00390625, 1.01171875, -1.00390625, 3.4e38, 1e-40, INF, NAN]
    x = mx.array(values + [0.0], mx.float32)
    source = "uint i = thread_position_in_grid.x; y[i] = bfloat16_t(x[i]);"
    result = run(source, x, dtype=mx.bfloat16)
    got, want = result.outputs[0].view(mx.uint16), x.astype(mx.bfloat16).view(mx.uint16)
    assert got.tolist()[:6] == want.tolist()[:6]
    assert mx.isnan(result.outputs[0][6]).item()


def test_structs_in_threadgroup_memory(run):
    """Metal constructs none: atomics, packed vectors, a struct of one's own."""
    source = """
        struct Pair { float a; packed_float3 b; };
        threadgroup Pair pairs[32];
        threadgroup atomic_int sum;
        uint i = thread_position_in_grid.x;
        if (i == 0) atomic_store_explicit(&sum, 0, memory_order_relaxed);
        pairs[i].a = x[i];
        pairs[i].b = packed_float3(float3(x[i], 1, 2));
        threadgroup_barrier(mem_flags::mem_threadgroup);
        atomic_fetch_add_explicit(&sum, int(pairs[31 - i].b.x), memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        int total = atomic_load_explicit(&sum, memory_order_relaxed);
        y[i] = pairs[i].b.z + pairs[i].a + total;"""
    x = mx.arange(32).astype(mx.float32)
    result = run(source, x, threadgroup=(32, 1, 1))
    assert result.reports == ()
    assert result.outputs[0].tolist() == [i + 2 + 496 for i in range(32)]


def test_a_nan_of_the_input_is_no_variable_that_nobody_set(run):
    x = mx.array([-1] * 32).view(mx.float32)
    assert run("uint i = thread_position_in_grid.x;\ny[i] = x[i];", x).reports == ()
