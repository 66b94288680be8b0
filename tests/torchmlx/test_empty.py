"""What reduces empty tensors comes back with torch's value: see empties.py."""

import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from torchmlx.aten._calling import collapse

ROOT = Path(__file__).parents[2]


# The C library fills fresh memory with a byte's complement: what MLX reads where it set nothing.
@pytest.mark.parametrize("byte", ["85", pytest.param("255", marks=pytest.mark.slow)])
def test_nothing_is_reduced_as_torch_does(byte, tmp_path):
    command = [sys.executable, "-m", "tests.torchmlx.empties"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MALLOC_PERTURB_": byte}
    told = tmp_path / "told.txt"
    with told.open("w") as out:
        try:
            done = subprocess.run(
                command, stdout=out, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                env=environment, timeout=200,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            pytest.fail(f"never came back from {told.read_text().splitlines()[-1]}")
    text = told.read_text()
    assert done.returncode == 0, f"{text[-200:]}{done.stderr}"
    assert [line for line in text.splitlines() if line.startswith("WRONG")] == []
    assert text.endswith("NAdam, transposed\n")


@pytest.mark.parametrize(
    ("function", "value"), [(mx.sum, 0), (mx.prod, 1), (mx.all, True), (mx.any, False)]
)
def test_collapse_of_nothing(function, value):
    nothing = mx.zeros((0, 3)).T
    assert collapse(function, nothing, 1).tolist() == [value] * 3
    assert collapse(function, nothing, 1, True).shape == (3, 1)
    assert collapse(function, nothing).item() == value
    assert collapse(mx.max, nothing, 0).shape == (0,)
    with pytest.raises(ValueError, match="size 0"):
        collapse(mx.max, nothing, 1)
