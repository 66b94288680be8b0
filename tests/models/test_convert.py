"""Model folders recast to another dtype, and what `torchmlx convert` refuses."""

import json

import mlx.core as mx
import numpy as np
import pytest
import safetensors

from tests import tiny
from torchmlx.errors import InputError
from torchmlx.models import convert as converter
from torchmlx.models import load
from torchmlx.models.checkpoint import Checkpoint
from torchmlx.models.config import read_config
from torchmlx.models.convert import convert
from torchmlx.models.prompt_cache import save_prompt_cache
from torchmlx.models.stepper import prefill
from torchmlx.serialization import safetensors as st

ARRAYS = {
    "model.layers.0.weight": mx.array([[1.0, 2.5], [3.14159, -1e-3]]),
    "model.norm.weight": mx.array([1.0, 0.1], mx.bfloat16),
    "model.index": mx.array([7, 8], mx.int32),
    "model.f8": mx.array([1, 255], mx.uint8),
}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "in"
    path.mkdir()
    st.save(path / "model.safetensors", ARRAYS, dtypes={"model.f8": "F8_E4M3"})
    config = {"model_type": "llama", "torch_dtype": "float32", "text_config": {"dtype": "float32"}}
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text("{}")
    (path / "chat_template.jinja").write_text("{{ x }}")
    (path / "pytorch_model.bin").write_text("pickle")
    return path


def content(path):
    with Checkpoint(path) as checkpoint:
        return {info.name: (info.dtype, array) for info, array in checkpoint.items()}


@pytest.mark.parametrize(("dtype", "name"), [("float16", "F16"), ("bfloat16", "BF16")])
def test_floats_are_recast_and_the_rest_stays(folder, dtype, name):
    out = convert(folder, folder.parent / "out", dtype)
    found = content(out)
    assert {key: kind for key, (kind, _) in found.items()} == {
        "model.layers.0.weight": name,
        "model.norm.weight": name,
        "model.index": "I32",
        "model.f8": "F8_E4M3",
    }
    expected = ARRAYS["model.layers.0.weight"].astype(getattr(mx, dtype))
    assert mx.array_equal(found["model.layers.0.weight"][1], expected).item()
    assert found["model.index"][1].tolist() == [7, 8]
    raw = json.loads((out / "config.json").read_text())
    assert raw["torch_dtype"] == dtype and raw["text_config"]["dtype"] == dtype
    assert "dtype" not in raw
    assert read_config(out).values["dtype"] == dtype


def test_without_a_dtype_everything_stays(folder):
    out = convert(folder, folder.parent / "out")
    found = content(out)
    for key, array in ARRAYS.items():
        assert mx.array_equal(found[key][1], array).item()
    assert found["model.norm.weight"][0] == "BF16"
    before = json.loads((folder / "config.json").read_text())
    assert json.loads((out / "config.json").read_text()) == before
    files = sorted(path.name for path in out.iterdir())
    assert files == ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]


def test_float64_is_recast(folder):
    values = np.array([1 / 3, 2.0])
    st.save(folder / "model.safetensors", {"w": values})
    found = content(convert(folder, folder.parent / "out", "float32"))
    np.testing.assert_array_equal(np.asarray(found["w"][1]), values.astype(np.float32))


def test_shards_are_written_and_read(folder, monkeypatch):
    monkeypatch.setattr(converter, "SHARD_BYTES", 8)
    out = convert(folder, folder.parent / "out", "float32")
    assert (out / "model.safetensors.index.json").is_file()
    assert mx.array_equal(content(out)["model.index"][1], ARRAYS["model.index"]).item()


def fails(message, *args, **options):
    with pytest.raises(InputError, match=message) as caught:
        convert(*args, **options)
    assert "\n" not in str(caught.value)


def test_what_is_refused(folder):
    out = folder.parent / "out"
    fails("dtype 'int8' is not supported; choose from float32", folder, out, "int8")
    fails("no such file or folder", folder / "absent", out)
    fails("not a GGUF file", folder / "tokenizer.json", out)
    fails("not empty; choose another, or add --force", folder, folder)
    fails("it holds the source", folder, folder, force=True)
    (folder / "config.json").write_text('{"model_type": "llama", "quantization_config": {}}')
    fails("a quantised model keeps its types", folder, out, "float16")
    assert not out.exists()


def test_values_beyond_float16_are_refused(folder):
    st.save(folder / "model.safetensors", {"w": mx.array([1e6])})
    fails(
        "model.safetensors: w holds values beyond float16", folder, folder.parent / "o", "float16"
    )
    assert sorted(path.name for path in folder.parent.iterdir()) == ["in"]
    assert content(convert(folder, folder.parent / "o", "bfloat16"))["w"][0] == "BF16"


def test_a_damaged_shard_leaves_nothing(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1])
    fails("truncated", folder, folder.parent / "out", "float16")
    assert sorted(path.name for path in folder.parent.iterdir()) == ["in"]


@pytest.fixture
def full_disk(monkeypatch):
    """Writing safetensors fails as the package does on a full disk, half-way."""

    def fail(tensors, path, metadata=None):
        path.write_bytes(b"half")
        raise safetensors.SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr(safetensors, "serialize_file", fail)


def test_a_full_disk_is_told_and_leaves_nothing(folder, full_disk):
    before = sorted(folder.parent.iterdir())
    with pytest.raises(InputError, match="out: cannot write there: No space left on device$"):
        convert(folder, folder.parent / "out")
    assert sorted(folder.parent.iterdir()) == before


def test_a_full_disk_keeps_the_prompt_cache_of_before(tmp_path, request):
    model, _ = load(str(tiny.write(tmp_path / "tiny")))
    cache, path = model.make_cache(), tmp_path / "prompt"
    prefill(model, cache, [1, 2, 3], 2)
    path.write_text("before")
    request.getfixturevalue("full_disk")
    with pytest.raises(InputError, match="prompt: cannot write it: No space left on device$"):
        save_prompt_cache(path, cache, [1, 2, 3], model)
    assert path.read_text() == "before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["prompt", "tiny"]
