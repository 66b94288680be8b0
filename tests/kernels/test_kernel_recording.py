"""The Metal that MLX would hand to a Mac, recorded on this machine: every case, every variant."""

import re

import mlx.core as mx
import pytest

from torchmlx.kernels import registry
from torchmlx.kernels.dispatch import trace, use
from torchmlx.kernels.kernel import bare
from torchmlx.kernels.recording import record
from torchmlx.kernels.softmax import softmax
from torchmlx.kernels.spec import FALLBACK, THREADGROUP_THREADS, Launch, Program
from torchmlx.kernels.swiglu import swiglu

METAL = {
    mx.float32: "float",
    mx.float16: "float16_t",
    mx.bfloat16: "bfloat16_t",
    mx.int32: "int32_t",
    mx.uint32: "uint32_t",
    mx.uint8: "uint8_t",
    mx.bool_: "bool",
}


def plans():
    """(kernel, case, dtype, variant) for every variant that can serve the case."""
    for name in registry.names():
        kernel = registry.get(name)
        for case in kernel.cases if kernel.metal else ():
            for dtype in kernel.nmse:
                problem = kernel.metal.problem(*case.outline(dtype), **case.keywords)
                for variant in kernel.metal.variants:
                    if serves(kernel.metal, problem, variant):
                        label = f"{name}-{case.label}-{dtype}-{variant}"
                        yield pytest.param(kernel, case, dtype, variant, id=label)


def serves(metal, problem, variant):
    try:
        return bool(metal.launch(problem, variant))
    except ValueError:
        return False


def literal(value):
    return METAL[value] if isinstance(value, mx.Dtype) else str(int(value))


def address(shape):
    """MLX puts arrays of fewer than 8 elements in constant memory."""
    size = 1
    for length in shape:
        size *= length
    return "constant" if size < 8 else "device"


@pytest.mark.parametrize("kernel, case, dtype, variant", list(plans()))
def test_generated_source(kernel, case, dtype, variant):
    arrays = case.outline(dtype)
    with use(**{kernel.name: f"metal:{variant}"}):
        recorded = record(lambda *a: kernel.function(*a, **case.keywords), *arrays)
    problem = kernel.metal.problem(*arrays, **case.keywords)
    launches = kernel.metal.launch(problem, variant)
    assert len(recorded) == len(launches)
    kinds = {n: a.dtype for n, a in zip(kernel.parameters, arrays, strict=False) if a is not None}
    for got, launch in zip(recorded, launches, strict=True):
        assert (got.grid, got.threadgroup) == (launch.grid, launch.threadgroup)
        assert launch.program.header in got.source
        assert launch.program.source in got.source
        assert got.instantiation == ", ".join(literal(value) for _, value in launch.template)
        assert buffers(got) == expected_buffers(launch, kinds)
        assert tuple(shape for shape, _ in got.inputs) == tuple(
            launch.inputs.get(name, ()) for name in launch.program.inputs
        )
        assert (got.row_contiguous, got.math_mode) == (launch.program.row_contiguous, "safe")
        assert got.outputs == tuple(launch.outputs[name] for name in launch.program.outputs)
        kinds |= {name: dtype for name, (_, dtype) in launch.outputs.items()}


def buffers(recorded):
    """Signature lines but for the thread attributes."""
    return [line for line in recorded.parameters if not re.match(r"uint3? ", line)]


def expected_buffers(launch, kinds):
    lines = []
    for name in launch.program.inputs:
        if name in launch.scalars:
            kind = "int32_t" if isinstance(launch.scalars[name], int) else "float"
            lines.append(f"const constant {kind}& {name}")
            continue
        lines.append(f"const {address(launch.inputs[name])} {METAL[kinds[name]]}* {name}")
        if f"{name}_shape" in launch.program.source:
            lines.append(f"const constant int* {name}_shape")
        if f"{name}_strides" in launch.program.source:
            lines.append(f"const constant int64_t* {name}_strides")
    for name in launch.program.outputs:
        lines.append(f"device {METAL[launch.outputs[name][1]]}* {name}")
    return lines


def test_the_policy_builds_the_metal_graph_of_its_choice():
    for name in registry.names():
        kernel = registry.get(name)
        for case in kernel.cases if kernel.metal else ():
            arrays = case.outline("bfloat16")
            want = registry.chosen(kernel, case).get("bfloat16", FALLBACK)
            with use(**{name: "metal"}), trace() as calls:
                if want == FALLBACK:  # only traced: MLX cannot export all of its own operations
                    kernel.function(*arrays, **case.keywords)
                    nodes = []
                else:
                    nodes = record(
                        lambda *a, k=kernel, c=case: k.function(*a, **c.keywords), *arrays
                    )
            call, *inside = calls  # a fallback may call other kernels
            assert not inside or want == FALLBACK
            assert (call.backend, call.variant or FALLBACK) == (
                ("fallback", FALLBACK) if want == FALLBACK else ("metal", want)
            )
            assert bool(nodes) == (want != FALLBACK)


def test_vocabulary_softmax_geometry():
    with use("metal"):
        partial, finalize = record(softmax, mx.zeros((1, 151_936), mx.bfloat16))
    assert (partial.grid, partial.threadgroup) == ((19_200, 1, 1), (256, 1, 1))
    assert partial.outputs == (((1, 75, 2), mx.float32),)
    assert finalize.inputs == (((1, 151_936), mx.bfloat16), ((1, 75, 2), mx.float32))
    assert finalize.instantiation == "bfloat16_t, 2048"
    assert finalize.parameters == (
        "const device bfloat16_t* x",
        "const constant int* x_shape",
        "const device float* part",
        "device bfloat16_t* out",
        "uint simdgroup_index_in_threadgroup",
        "uint thread_index_in_simdgroup",
        "uint thread_index_in_threadgroup",
        "uint3 threadgroup_position_in_grid",
        "uint3 threadgroups_per_grid",
    )


def test_tiny_inputs_arrive_in_constant_memory():
    with use("metal"):
        (got,) = record(swiglu, mx.zeros((1, 3)), mx.zeros((8, 3)))
    assert got.name == "custom_kernel_swiglu__float_1_1_4_floatc_float_float"
    assert got.parameters[:2] == ("const constant float* x", "const device float* gate_up")


def test_lengths_are_not_compiled_in():
    """One library serves every length: the cache key must not change with the shape."""
    with use("metal"):
        names = {record(softmax, mx.zeros((3, n)))[0].name for n in (1100, 1500, 2048)}
        names |= {record(softmax, mx.zeros((300, n)))[0].name for n in (2050, 5000)}
    assert len(names) == 1


def test_record_of_a_function_without_kernels():
    assert record(mx.exp, mx.zeros((3,))) == []


def test_bare_ends_with_its_block():
    with bare():
        pass
    gradient = mx.grad(lambda x: softmax(x)[0])(mx.array([0.0, 0.0]))
    assert gradient.tolist() == [0.25, -0.25]


def geometry(**changes):
    program = Program("copy", ("x",), ("out",), "out[0] = x[0];")
    fields = {
        "inputs": {"x": (8,)},
        "outputs": {"out": ((8,), mx.float32)},
        "grid": (8, 1, 1),
        "threadgroup": (8, 1, 1),
    }
    return Launch(program, **{**fields, **changes})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"grid": (0, 1, 1)}, "is empty or beyond 32 bits"),
        ({"grid": (2**32, 1, 1)}, "is empty or beyond 32 bits"),
        ({"threadgroup": (THREADGROUP_THREADS + 1, 1, 1)}, "over the thread limit"),
        ({"threadgroup_bytes": 32_769}, "32769 bytes of threadgroup memory"),
    ],
)
def test_geometry_that_no_mac_accepts(changes, message):
    geometry()
    with pytest.raises(ValueError, match=message):
        geometry(**changes)


def test_declared_threadgroup_memory_is_what_the_source_declares():
    """float2 shared[SIMDGROUPS] and shared[THREADS] of softmax: 8 bytes an element."""
    kernel = registry.get("softmax")
    lengths = {"SIMDGROUPS": 8, "THREADS": 256}
    for shape, axis, variant in (
        ((2, 9), 1, "row"),
        ((3, 5000), 1, "split"),
        ((4, 9, 2), 1, "strided"),
    ):
        for launch in kernel.metal.launch(kernel.metal.problem(mx.zeros(shape), axis), variant):
            found = re.findall(r"threadgroup float2 shared\[(\w+)\]", launch.program.source)
            assert launch.threadgroup_bytes == sum(8 * lengths[name] for name in found)


def test_source_must_be_ascii():
    with pytest.raises(ValueError, match="copy: Metal source must be ASCII"):
        Program("copy", ("x",), ("out",), "// \N{MULTIPLICATION SIGN}")
