"""torch.UntypedStorage of files and of bytes, as safetensors' safe_open reads by it."""

import gc
import json
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
import torch

import torchmlx


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(64)))
    return str(path)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "bfloat16", "float16", "int64"])
def test_bytes_of_a_file_are_torchs(file, dtype):
    values = []
    for lib in (torchmlx, torch):
        storage = lib.UntypedStorage.from_file(file, False, 64)
        assert (len(storage), storage.nbytes(), storage[3], storage[60:].tolist()) == (
            64, 64, 3, [60, 61, 62, 63]
        )  # fmt: skip
        x = lib.asarray(storage[8:40], dtype=lib.uint8).view(dtype=getattr(lib, dtype))
        values.append((tuple(x.shape), x.view(lib.uint8).tolist(), x.double().tolist()))
    np.testing.assert_equal(*values)


def test_changes_stay_in_memory(file):
    x = torchmlx.asarray(torchmlx.UntypedStorage.from_file(file, False, 8), dtype=torchmlx.uint8)
    x.fill_(7)
    assert x.tolist() == [7] * 8
    with open(file, "rb") as read:
        assert read.read() == bytes(range(64))


def test_a_shared_file_is_made_and_written(tmp_path):
    path = tmp_path / "new"
    storage = torchmlx.UntypedStorage.from_file(str(path), shared=True, nbytes=4)
    torchmlx.asarray(storage, dtype=torchmlx.uint8).copy_(torchmlx.tensor([1, 2, 3, 4]))
    storage.numpy().base.flush()
    assert path.read_bytes() == bytes([1, 2, 3, 4])


@pytest.mark.parametrize(
    "copied",
    [
        lambda part: part.clone(),
        lambda part: part.to(torchmlx.float32, copy=True),
        lambda part: torchmlx.tensor(part),
        lambda part: torchmlx.empty(10).copy_(part),
        lambda part: torchmlx.cat([part]),
        lambda part: torchmlx.stack([part]),
    ],
    ids=["clone", "to", "tensor", "copy_", "cat", "stack"],
)
def test_a_copy_of_a_part_lets_the_rest_go(copied):
    before = mx.get_active_memory()
    whole = torchmlx.ones(1 << 20) + 1
    part = copied(whole[:10])
    mx.eval(whole.mx, part.mx)
    del whole
    assert mx.get_active_memory() - before < 1000 and part.flatten().tolist() == [2] * 10


def test_what_cannot_be(file, tmp_path):
    from_file = torchmlx.UntypedStorage.from_file
    with pytest.raises(RuntimeError, match="unable to open file"):
        from_file(str(tmp_path / "none"), False, 4)
    with pytest.raises(RuntimeError, match="has 64 bytes, not 65"):
        from_file(file, False, 65)
    assert len(from_file(file, False, 0)) == 0
    with pytest.raises(RuntimeError, match="step of 1"):
        from_file(file, False, 8)[::2]
    with pytest.raises(NotImplementedError, match=r"view\(torch.uint8\)"):
        torchmlx.ones(2).untyped_storage().tolist()
    assert torchmlx.UntypedStorage(3).tolist() == [0, 0, 0]


SCRIPT = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
ids = torch.tensor([[3, 14, 15, 9, 2]])
with torch.no_grad():
    logits = model(ids).logits
out = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
dtype = str(next(model.parameters()).dtype)
print(json.dumps([logits.float().flatten().tolist(), out.tolist(), dtype]))
"""


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_transformers_reads_a_checkpoint_and_generates(tmp_path, dtype):
    """A script for torch, unchanged: AutoModelForCausalLM.from_pretrained, generate."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(tmp_path / "model")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    answers = []
    for runner in ([], ["-m", "torchmlx", "run"]):
        done = subprocess.run(
            [sys.executable, *runner, str(script), str(tmp_path / "model")],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout.strip().splitlines()[-1]))
    (theirs, their_tokens, their_dtype), (mine, tokens, own_dtype) = answers
    assert own_dtype == their_dtype
    limit = 2e-5 if dtype == "float32" else 4e-2
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=limit * np.abs(theirs).max())
    if dtype == "float32":
        assert tokens == their_tokens


COPIES = {
    "repeat": lambda x: x.repeat(1),
    "tile": lambda x: torchmlx.tile(x, (1,)),
    "sum": lambda x: x.reshape(-1, 1).sum(1),
    "sum of a number": lambda x: x[3].sum(),
    "mean": lambda x: x.reshape(-1, 1).mean(1, keepdim=True),
    "amax": lambda x: x.reshape(-1, 1).amax(1),
    "prod": lambda x: x.reshape(-1, 1).prod(1),
    "flip": lambda x: x.flip(()),
    "max_pool1d": lambda x: torchmlx.nn.functional.max_pool1d(x[None], 1),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_result_does_not_keep_what_it_was_made_of(name):
    """Also where it has the same elements."""
    import mlx.core as mx

    gc.collect()
    before = mx.get_active_memory()
    x = torchmlx.ones(1 << 20).add_(1)
    result = COPIES[name](x[:10])
    assert result.sum().item() > 0
    del x
    gc.collect()
    assert mx.get_active_memory() - before < 1 << 20
