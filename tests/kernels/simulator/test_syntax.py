"""Syntax mode: what Apple's compiler rejects is rejected, at its line; what it takes is taken."""

import mlx.core as mx
import pytest

from torchmlx.kernels.simulator import CompileError, check_syntax
from torchmlx.kernels.simulator.simulate import recorded_call


def check(source, header="", dtype=mx.float32):
    """The errors, with lines of the source (the line that is 1 there)."""
    kernel = mx.fast.metal_kernel(
        name="case", input_names=["x"], output_names=["y"], source=source, header=header
    )
    recorded = recorded_call(
        kernel,
        [mx.zeros((16,), dtype)],
        template=[("T", dtype)],
        grid=(16, 1, 1),
        threadgroup=(16, 1, 1),
        output_shapes=[(16,)],
        output_dtypes=[dtype],
    )
    return check_syntax(recorded)


REJECTED = {
    "device to threadgroup": ("threadgroup float* p = y;", "cannot initialize"),
    "device to thread": ("thread float* p = y;", "cannot initialize"),
    "thread to device": ("float v = 0; device float* p = &v;", "cannot initialize"),
    "const dropped": ("device float* p = x;", "cannot initialize"),
    "cast to threadgroup": ("threadgroup float* p = (threadgroup float*)y;", "address space"),
    "cast to thread": ("float v = *(thread float*)y;", "changes the address space"),
    "cast of a reference": ("thread float& v = (thread float&)y[0];", "address space"),
    "reinterpret_cast": (
        "auto p = reinterpret_cast<threadgroup float*>(y);",
        "reinterpret_cast from 'device float *'",
    ),
    "argument of a helper": ("y[0] = first(y);", "no matching function"),
    "threadgroup initialiser": ("threadgroup float s[2] = {1, 2};", "takes no initialiser"),
    "min of int and uint": ("y[0] = metal::min(1, 2u);", "'min' is ambiguous"),
    "max of half and float": ("y[0] = metal::max(1.0h, x[0]) + max(1, 2ul);", "ambiguous"),
    "float to bfloat": ("bfloat b = x[0];", "implicit conversion to bfloat"),
    "literal to bfloat": ("bfloat b = 0.5;", "implicit conversion to bfloat"),
    "float argument to bfloat": ("take(x[0]);", "implicit conversion to bfloat"),
    "bfloat to half": ("bfloat b = bfloat(1); half h = b;", "half"),
    "vectors of other types": ("int4 a = int4(1); float4 b = a;", "cannot initialize"),
    "too few components": ("float4 v = float4(1, 2);", "wrong number of vector components"),
    "unknown name": ("y[0] = nonsense(x[0]);", "undeclared identifier 'nonsense'"),
    "write to an input": ("x[0] = 1;", "not assignable"),
}
HEADER = """
inline float first(threadgroup const float* p) { return p[0]; }
inline void take(bfloat) {}
"""


@pytest.mark.parametrize("name", REJECTED)
def test_rejected(name):
    source, message = REJECTED[name]
    errors = check("\n\n" + source, HEADER)
    assert any(message in error for error in errors), errors
    assert {error.partition(":")[0] for error in errors} == {"line 10"}


ACCEPTED = {
    "spaces kept": "const device float* p = x; device float* q = (device float*)x; q = y;",
    "vectors": "device float4* v = (device float4*)y; v[0] = float4(x[0]); v[1].xy += 3;",
    "swizzles": "float4 v = float4(1, 2, 3, 4); v.xz = v.zx; y[0] = dot(v.xyz, float3(1));",
    "vector casts": "float4 a = (float4)int4(3); half4 b = half4(a); y[0] = float(b.w) - -a.x;",
    "vec constructors": "y[0] = vec<float, 4>(uint3(1, 2, 3).x).w + metal::vec<float, 2>(1, 2).y;",
    "float, int": "y[0] = metal::fmax(0, x[0]) + metal::max(x[0], 1.0f);",
    "structs": "struct P { float a, b; }; P p = ((const device P*)x)[0]; ((device P*)y)[0] = p;",
    "threadgroup": "threadgroup float s[4]; threadgroup float* p = s; p[1] = x[0]; y[0] = s[1];",
    "bfloat": "bfloat b = bfloat(x[0]); float f = b; b = static_cast<bfloat>(f); y[0] = b + b;",
    "atomics": "device atomic_uint* a = (device atomic_uint*)y;\n"
    "atomic_fetch_add_explicit(a, 1u, memory_order_relaxed);",
    "matrices": "simdgroup_float8x8 m; simdgroup_load(m, x); simdgroup_store(m, y, 8);",
    "limits": "y[0] = numeric_limits<float>::max() + Limits<float>::min;",
    "constants": "constexpr int N = 3; float a[N]; a[0] = 1.5; y[0] = a[0];",
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    assert check(ACCEPTED[name], HEADER) == ()


def test_a_template_is_checked_for_its_arguments():
    source = "T v = 0.5f; y[0] = v;"
    assert check(source) == ()
    assert check(source, dtype=mx.float16) == ()
    (error,) = check(source, dtype=mx.bfloat16)
    assert error == "line 5: implicit conversion to bfloat: write bfloat(...)"


def test_a_helper_is_checked_where_it_is_instantiated():
    header = "template <typename T> inline T half_of(float x) {\n    return x / 2;\n}\n"
    assert check("y[0] = half_of<T>(2.0f);", header) == ()
    (error,) = check("y[0] = half_of<T>(2.0f);", header, mx.bfloat16)
    assert error == "line 2: implicit conversion to bfloat: write bfloat(...)"


def test_a_run_refuses_what_is_rejected(run):
    with pytest.raises(CompileError, match=r"case.*: line 4: cast to 'threadgroup float \*'") as e:
        run("threadgroup float* p = (threadgroup float*)y;", mx.zeros((16,)))
    assert len(e.value.messages) == 1
