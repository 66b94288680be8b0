"""Discovery and the rows that `torchmlx kernels list` prints."""

import json
import sys

import mlx.core as mx
import pytest

from tests.bounded import run
from torchmlx.kernels import native, registry
from torchmlx.kernels.discovery import FOLDER
from torchmlx.kernels.kernel import Kernel
from torchmlx.kernels.softmax import softmax


def test_every_kernel_file_is_found():
    assert {"gemv", "softmax"} <= set(registry.names())
    assert list(registry.names()) == sorted(registry.names())
    for name in registry.names():
        kernel = registry.get(name)
        assert isinstance(kernel, Kernel)
        assert kernel.name == name


def test_an_unknown_kernel_names_the_known_ones():
    with pytest.raises(KeyError, match="no kernel 'conv9d'; there are: .*gemv, .*softmax"):
        registry.get("conv9d")


def test_every_case_says_why_and_is_told_apart():
    for name in registry.names():
        cases = registry.get(name).cases
        assert all(case.why for case in cases)
        assert len({case.label for case in cases}) == len(cases)


def test_parameters_name_the_arrays_of_cases():
    for name in registry.names():
        kernel = registry.get(name)
        for case in kernel.cases:
            assert kernel.parameters[: len(case.arrays)] == tuple(case.arrays)


def test_listing_is_json_and_complete():
    rows = {row["kernel"]: row for row in json.loads(json.dumps(registry.listing()))}
    row = rows["softmax"]
    assert row["summary"] == softmax.__doc__.partition("\n")[0]
    assert list(row["backends"]) == ["metal", "cpu", "cuda", "fallback"]
    assert row["backends"]["cpu"] == (native.obstacle() or "")
    assert row["backends"]["fallback"] == ""
    assert list(row["variants"]) == ["row", "looped", "split", "strided"]
    assert row["dtypes"] == ["float32", "float16", "bfloat16"]
    vocabulary = row["cases"][0]
    assert vocabulary["label"] == "x=1x151936,axis=1"
    assert vocabulary["variants"] == dict.fromkeys(row["dtypes"], "split")
    prompt = rows["gemv"]["cases"][-1]
    assert prompt["variants"]["bfloat16"] == "fallback"


def test_every_variant_is_chosen_for_some_case():
    for row in registry.listing():
        chosen = {variant for case in row["cases"] for variant in case["variants"].values()}
        assert set(row["variants"]) <= chosen


def test_importing_the_package_loads_no_kernel_and_no_mlx():
    source = (FOLDER / "__init__.py").read_text()
    assert "import" not in source


def test_kernels_import_neither_facade_nor_a_top_level_kernels():
    code = (
        "import sys, torchmlx.kernels.registry as r; r.listing();"
        "print([m for m in sys.modules if m == 'kernels' or m.startswith('kernels.')])"
    )
    done = run([sys.executable, "-c", code])
    assert done.stdout.strip() == "[]", done.stderr
    assert not any("torchmlx" in line for path in FOLDER.glob("*.py") for line in imports(path))


def imports(path):
    lines = path.read_text().splitlines()
    return [line for line in lines if line.startswith(("import ", "from "))]


def test_listing_evaluates_nothing():
    before = mx.get_active_memory()
    registry.listing()
    assert mx.get_active_memory() - before < 1 << 20
