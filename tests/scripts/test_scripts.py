"""Scripts that say `import torch`, under torch and through our runner: the same numbers."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from tests.bounded import started

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# How far the numbers may be from torch's: rounding that training carries on.
BOUNDS = {
    "causal_vae": 2e-5,
    "char_gpt": 1e-3,
    "convnet": 2e-3,
    "dcgan": 2e-3,
    "hugging_face": 1e-4,
    "loaders": 1e-6,
    "lstm_lm": 1e-3,
    "moe": 1e-4,
    "resume": 1e-3,
    "vae": 1e-3,
}
# Losses under bfloat16 autocast are rounded elsewhere than torch rounds.
ROUGH = 0.05


def _flat(value) -> list[float]:
    if isinstance(value, list):
        return [x for part in value for x in _flat(part)]
    return [value]


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_script(name, capsys):
    pytest.importorskip("torch")
    script = str(HERE / f"{name}.py")
    with started(
        [sys.executable, "-m", "torchmlx", "run", script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as run:  # fmt: skip
        with redirect_stdout(StringIO()) as written:
            runpy.run_path(script, run_name="__main__")
        out, err = run.communicate(timeout=120)
    theirs = json.loads(written.getvalue())
    assert run.returncode == 0, err
    mine = json.loads(out.strip().splitlines()[-1])
    assert mine.keys() == theirs.keys()
    for key, expected in theirs.items():
        bound = ROUGH if key == "rough" else BOUNDS[name]
        np.testing.assert_allclose(
            _flat(mine[key]), _flat(expected), rtol=bound, atol=bound, err_msg=key
        )
