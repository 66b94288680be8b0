"""Every operation of torch's op_db against torch: values, half precision, steps in memory, errors.

What differs is listed in docs/compatibility.md; gradients are in test_gradients.py.
"""

from __future__ import annotations

import re

import pytest

from . import compatibility, opdb

torch = pytest.importorskip("torch", reason="torch 2.13 CPU is the oracle of parity tests")

CHUNKS = 4
pytestmark = pytest.mark.filterwarnings("ignore")
chunks = pytest.mark.parametrize("chunk", range(CHUNKS))

# Half precision in every step, where we round once: theirs is the less exact.
LESS_EXACT = {
    "grid_sampler_2d", "grid_sampler_3d", "matrix_exp", "nn.functional.cosine_similarity",
    "nn.functional.grid_sample",
}  # fmt: skip
# torch writes between the elements, where only the storage has some.
IN_STORAGE = {"as_strided_scatter"}


def in_chunk(chunk: int) -> list:
    return opdb.operations()[chunk::CHUNKS]


@chunks
def test_values_are_torchs_but_for_the_listed_misses(chunk):
    found, expected = {}, compatibility.listed_misses()
    for op in in_chunk(chunk):
        kind = opdb.first_miss(op, compatibility.SAMPLES, compatibility.BOUND)
        found |= {opdb.key_of(op): kind} if kind else {}
    keys = {opdb.key_of(op) for op in in_chunk(chunk)}
    assert found == {k: v for k, v in expected.items() if k in keys}


def compare(chunk: int, dtype, most: int, bound: float, left_out=frozenset(), **layout) -> int:
    """Samples that agree; all must, but for the listed misses."""
    listed, wrong, passed = compatibility.listed_misses(), {}, 0
    for op in in_chunk(chunk):
        key = opdb.key_of(op)
        given = dtype or next((d for d in opdb.DTYPES if d in op.supported_dtypes("cpu")), None)
        if given not in op.supported_dtypes("cpu") or op.name in opdb.RANDOM or key in listed:
            continue
        if key in opdb.AMBIGUOUS | left_out:
            continue
        agree, differ = opdb.misses(op, given, most, bound, **layout)
        passed += agree
        if differ:
            wrong[key] = differ[0]
    assert not wrong
    return passed


@chunks
def test_half_precision(chunk):
    assert compare(chunk, torch.bfloat16, 2, 1.6e-2, LESS_EXACT) > 150


@chunks
def test_tensors_with_steps_in_memory(chunk):
    assert compare(chunk, None, 2, 2e-5, IN_STORAGE, laid_out=opdb.strided) > 180


# Where torch refuses and we do not, or with another type of error.
LENIENT = {
    "aminmax", "arange", "bernoulli", "bitwise_and", "bitwise_left_shift", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "cat", "clamp_max", "clamp_min", "complex",
    "copysign", "cov", "dstack", "eq", "eye", "float_power", "fmod", "gather", "ge", "gt",
    "hstack", "index_select", "isclose", "kthvalue", "ldexp", "le", "linspace", "logical_and",
    "logical_or", "logical_xor", "logspace", "lt", "masked_fill", "masked_scatter",
    "masked_select", "movedim", "multinomial", "narrow", "narrow_copy", "ne",
    "nn.functional.adaptive_avg_pool1d", "nn.functional.adaptive_avg_pool2d",
    "nn.functional.adaptive_avg_pool3d", "nn.functional.adaptive_max_pool1d",
    "nn.functional.adaptive_max_pool2d", "nn.functional.adaptive_max_pool3d",
    "nn.functional.conv1d", "nn.functional.conv2d", "nn.functional.conv3d",
    "nn.functional.embedding", "nn.functional.multi_margin_loss",
    "nn.functional.multilabel_margin_loss", "nn.functional.rrelu", "polar", "pow", "remainder",
    "renorm", "rsub", "scatter", "scatter_add", "special.xlog1py", "special.zeta", "take",
    "vstack", "xlogy",
}  # fmt: skip


def test_errors_are_torchs():
    """The type of each error, and the gist of most messages."""
    wrong, messages = [], []
    for op in opdb.operations():
        for name, theirs, mine, gist in opdb.refusals(op) if op.error_inputs_func else ():
            if isinstance(mine, AttributeError) and "has no attribute" in str(mine):
                continue
            if type(mine).__name__ != type(theirs).__name__ and op.name not in LENIENT:
                wrong.append(f"{name}: {mine!r}, torch {theirs!r}")
            messages.append(bool(re.search(gist, str(mine))))
    assert not wrong
    assert len(messages) > 400
    assert sum(messages) > 0.6 * len(messages)
