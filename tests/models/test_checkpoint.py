"""Opening a model folder: every layout, lazily, and one clear line for each damage."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from torchmlx.errors import InputError
from torchmlx.models.checkpoint import Checkpoint, copy_settings, describe, layer_of, staged_folder
from torchmlx.serialization import safetensors as st

ARRAYS = {
    "model.layers.10.mlp.weight": mx.full((2, 2), 10.0),
    "model.layers.2.mlp.weight": mx.full((2, 2), 2.0),
    "model.norm.weight": mx.ones((2,)),
    "model.embed_tokens.weight": mx.zeros((4, 2), mx.bfloat16),
}
ORDER = [
    "model.embed_tokens.weight",
    "model.norm.weight",
    "model.layers.2.mlp.weight",
    "model.layers.10.mlp.weight",
]


def sharded(folder):
    """ARRAYS over two files with an index; returns the index."""
    names = list(ARRAYS)
    st.save(folder / "model-00001-of-00002.safetensors", {n: ARRAYS[n] for n in names[:2]})
    st.save(folder / "model-00002-of-00002.safetensors", {n: ARRAYS[n] for n in names[2:]})
    index = {
        "weight_map": {
            n: f"model-0000{1 if n in names[:2] else 2}-of-00002.safetensors" for n in names
        }
    }
    write_index(folder, index)
    return index


def write_index(folder, index):
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def check_content(folder):
    with Checkpoint(folder) as checkpoint:
        assert list(checkpoint.tensors) == ORDER
        assert checkpoint.tensors["model.embed_tokens.weight"].dtype == "BF16"
        assert checkpoint.nbytes == 16 + 8 + 16 + 16
        for info, array in checkpoint.items():
            assert mx.array_equal(array, ARRAYS[info.name]).item()
        layers = [(layer, [i.name for i in infos]) for layer, infos in checkpoint.layers()]
        assert layers == [(None, ORDER[:2]), (2, ORDER[2:3]), (10, ORDER[3:])]


def test_single_file(tmp_path):
    st.save(tmp_path / "model.safetensors", ARRAYS)
    check_content(tmp_path)


def test_sharded_with_index(tmp_path):
    sharded(tmp_path)
    check_content(tmp_path)


def test_parts_without_index(tmp_path):
    sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    check_content(tmp_path)


def test_any_name(tmp_path):
    st.save(tmp_path / "diffusion_pytorch_model.safetensors", ARRAYS)
    check_content(tmp_path)


def test_the_report_reads_no_data(tmp_path, monkeypatch):
    sharded(tmp_path)
    monkeypatch.setattr(st.SafetensorsFile, "read", lambda *_: pytest.fail("data was read"))
    with Checkpoint(tmp_path) as checkpoint:
        assert describe(checkpoint)[2] == {
            "name": "model.layers.2.mlp.weight",
            "dtype": "F32",
            "shape": [2, 2],
            "nbytes": 16,
            "file": "model-00001-of-00002.safetensors",
        }


def test_the_index_decides_between_two_copies_and_keeps_extra_tensors(tmp_path):
    index = sharded(tmp_path)
    twice = "model.norm.weight"
    st.save(
        tmp_path / "model-00001-of-00002.safetensors",
        {n: ARRAYS[n] for n in list(ARRAYS)[:2]} | {twice: mx.full((2,), 7.0), "x": mx.ones((1,))},
    )
    assert index["weight_map"][twice].startswith("model-00002")
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.read(twice).tolist() == [1.0, 1.0]
        assert "x" in checkpoint.tensors


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.12.mlp.up_proj.weight", 12),
        ("layers.3.weight", 3),
        ("transformer.h.0.attn.weight", 0),
        ("decoder.up_blocks.2.weight", None),
        ("lm_head.weight", None),
    ],
)
def test_layer_of(name, layer):
    assert layer_of(name) == layer


def fails(folder, message):
    with pytest.raises(InputError, match=message) as caught:
        Checkpoint(folder)
    assert "\n" not in str(caught.value)


def test_no_folder(tmp_path):
    fails(tmp_path / "absent", "no such folder")
    (tmp_path / "file").write_text("")
    fails(tmp_path / "file", "no such folder")


def test_no_weights(tmp_path):
    fails(tmp_path, "no \\*.safetensors file")
    (tmp_path / "model.gguf").touch()
    fails(tmp_path, "torchmlx convert")
    (tmp_path / "pytorch_model.bin").touch()
    fails(tmp_path, "only pickled weights \\(pytorch_model.bin\\)")


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "a/b.safetensors", "a\\b.safetensors", "..", "", 3, None]
)
def test_an_index_may_only_name_files_of_the_folder(tmp_path, name):
    write_index(tmp_path, {"weight_map": {"w": name}})
    fails(tmp_path, "not a plain file name")


def test_an_index_may_not_name_pickles(tmp_path):
    write_index(tmp_path, {"weight_map": {"w": "pytorch_model.bin"}})
    fails(tmp_path, "not a safetensors file")


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": []}])
def test_an_index_without_a_map(tmp_path, index):
    write_index(tmp_path, index)
    fails(tmp_path, "'weight_map' is missing or empty")


def test_an_index_that_is_not_json(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("{")
    fails(tmp_path, "model.safetensors.index.json: not valid JSON")


def test_missing_shard(tmp_path):
    sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    fails(tmp_path, "model-00002-of-00002.safetensors is missing")
    (tmp_path / "model.safetensors.index.json").unlink()
    fails(tmp_path, "only 1 of 2 parts")


def test_tensor_of_the_index_that_is_in_no_file(tmp_path):
    index = sharded(tmp_path)
    index["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    write_index(tmp_path, index)
    fails(tmp_path, "model-00001-of-00002.safetensors: tensor 'ghost' is missing")


def test_the_same_tensor_in_two_files(tmp_path):
    st.save(tmp_path / "a.safetensors", ARRAYS)
    st.save(tmp_path / "b.safetensors", {"model.norm.weight": mx.ones((2,))})
    fails(tmp_path, "tensor 'model.norm.weight' is both in a.safetensors and in b.safetensors")


def test_two_indexes(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.safetensors.index.json").write_text("{}")
    fails(tmp_path, "more than one index")


def test_reading_an_unknown_tensor(tmp_path):
    st.save(tmp_path / "model.safetensors", ARRAYS)
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(InputError, match="'v' is missing"):
        checkpoint.read("v")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_staging_leaves_all_or_nothing(tmp_path):
    out = tmp_path / "deep" / "out"
    with pytest.raises(KeyboardInterrupt), staged_folder(out, tmp_path / "src") as folder:
        (folder / "half").touch()
        raise KeyboardInterrupt
    assert names(tmp_path / "deep") == []
    with staged_folder(out, tmp_path / "src") as folder:
        (folder / "config.json").touch()
        assert not out.exists()
    assert names(out) == ["config.json"] and names(out.parent) == ["out"]


def test_staging_replaces_only_a_model_folder_and_only_when_forced(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    source = tmp_path / "src.gguf"

    def attempt(message, force, source=source):
        with pytest.raises(InputError, match=message), staged_folder(out, source, force):
            pytest.fail("must not get here")

    attempt("not empty; choose another, or add --force", False)
    attempt("no model folder", True)
    (out / "config.json").touch()
    attempt("holds the source", True, out / "m.gguf")
    with staged_folder(out, source, force=True) as folder:
        (folder / "new").touch()
    assert names(out) == ["new"] and names(tmp_path) == ["out"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("restores", [True, False])
def test_what_was_there_outlives_a_failing_exchange(tmp_path, monkeypatch, error, restores):
    """It comes back, and where even that fails it is kept beside."""
    out, rename = tmp_path / "out", Path.rename
    out.mkdir()
    (out / "config.json").write_text("old")

    def failing(self, target):
        if self.name.endswith(".tmp") or (self.name.endswith(".old") and not restores):
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    expected = InputError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught, staged_folder(out, tmp_path / "s", True) as folder:
        (folder / "config.json").write_text("new")
    (left,) = names(tmp_path)
    assert (tmp_path / left / "config.json").read_text() == "old"
    assert (left == "out") == restores
    if isinstance(error, OSError) and not restores:
        assert left in str(caught.value)


def test_staging_refuses_a_file_and_a_link(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with (
            pytest.raises(InputError, match="not a folder"),
            staged_folder(tmp_path / name, tmp_path / "s", True),
        ):
            pytest.fail("must not get here")


def test_an_empty_folder_is_used(tmp_path):
    (tmp_path / "out").mkdir()
    with staged_folder(tmp_path / "out", tmp_path / "s") as folder:
        (folder / "x").touch()
    assert names(tmp_path / "out") == ["x"]


def test_settings_are_copied_without_weights(tmp_path):
    source, out = tmp_path / "a", tmp_path / "b"
    source.mkdir(), out.mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "config.json", "merges.txt"):
        (source / name).write_text(name)
    for name in ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"):
        (source / name).touch()
    copy_settings(source, out, skip=("config.json",))
    assert names(out) == ["chat_template.jinja", "merges.txt", "tokenizer.json"]
    assert (out / "merges.txt").read_text() == "merges.txt"
