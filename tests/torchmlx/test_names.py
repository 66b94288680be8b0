"""Every name that real torch scripts use is here, under torch's name."""

from __future__ import annotations

import csv
from importlib import import_module
from pathlib import Path

import pytest

import torchmlx

from .parity import find, torch

# Objects' own attributes, which other tests use; what another issue or nobody has: distributed,
# internals, sparse layouts, quantised integers, compiled attention.
ELSEWHERE = (
    "?", "operator", "Optimizer", "LRScheduler", "GradScaler", "torch.distributed", "torch._",
    "torch.ops.aten", "torch.profiler._", "torch.sparse_coo", "Tensor.to_sparse", "Tensor.device",
    "Tensor.dtype", "nn.parallel.data_parallel",
)  # fmt: skip


def names(shared: Path) -> list[str]:
    with (shared / "conformance" / "api_frequency.tsv").open() as file:
        rows = [row["api"] for row in csv.DictReader(file, delimiter="\t")]
    kept = [r.removeprefix("torch.") for r in rows if not r.startswith(ELSEWHERE)]
    return ["nn.functional." + n[2:] if n.startswith("F.") else n for n in kept]


@pytest.mark.shared
def test_names_of_real_scripts(shared):
    found = names(shared)
    assert len(found) > 350
    absent = []
    for name in found:
        try:
            find(torchmlx, name)
        except AttributeError:
            absent.append(name)
    assert not absent


def test_the_default_type_by_its_old_name():
    try:
        for name in ("torch.DoubleTensor", torchmlx.HalfTensor, "torch.FloatTensor"):
            torchmlx.set_default_tensor_type(name)
            wanted = str(name).replace("<class '", "").replace("'>", "")
            kinds = {"torch.DoubleTensor": torchmlx.float64, "torch.HalfTensor": torchmlx.float16}
            assert torchmlx.tensor(1.5).dtype is kinds.get(wanted, torchmlx.float32)
        with pytest.raises(TypeError, match="floating-point types"):
            torchmlx.set_default_tensor_type("torch.LongTensor")
    finally:
        torchmlx.set_default_dtype(torchmlx.float32)


def test_typings_names_in_jit_annotations():
    """timm's DenseNet imports List from there."""
    modules = [import_module(f"{lib.__name__}.jit.annotations") for lib in (torchmlx, torch)]
    for name in ("Any", "Dict", "List", "Optional", "Tuple", "Union"):
        ours, theirs = (getattr(module, name) for module in modules)
        assert ours is theirs
