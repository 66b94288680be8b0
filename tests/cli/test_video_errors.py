"""What the video commands refuse: one line, exit code 2, and nothing left behind."""

import pickle
import resource
import shutil
import sys
from contextlib import contextmanager

import mlx.core as mx
import numpy as np
import pytest

import torchmlx as torch
from torchmlx.cli.shapes import moving_shapes
from torchmlx.models.assets import small_autoencoder
from torchmlx.models.clips import write_clip
from torchmlx.serialization.safetensors import SafetensorsFile, save

VAE = small_autoencoder()
NOISE = np.random.default_rng(0).standard_normal((1, 48, 2, 4, 6)).astype(np.float32)


@pytest.fixture
def refused(torchmlx, tmp_path):
    """Runs a command that has to fail, and compares the folder with what was in it before."""

    def run(*arguments, code=2):
        before = sorted(tmp_path.rglob("*"))
        outcome = torchmlx(*map(str, arguments))
        assert (outcome.code, outcome.out) == (code, ""), outcome.err
        lines = outcome.err.splitlines()
        # Before it there may be the plan.
        assert lines[-1].startswith("torchmlx: error: ")
        assert all("at most" in line or "cut to" in line for line in lines[:-1])
        assert sorted(tmp_path.rglob("*")) == before
        return lines[-1]

    return run


@pytest.fixture
def decode(refused, tmp_path):
    """Runs a decode-video that has to fail; of an array, or of a file that is there."""

    def run(latents=NOISE, *flags, out="clip.mp4", vae=VAE):
        path = latents
        if isinstance(latents, np.ndarray):
            path = tmp_path / "z.npy"
            np.save(path, latents)
        return refused(
            "decode-video", "--vae", vae, "--latents", path, "--out", tmp_path / out, *flags
        )

    return run


def with_one(value):
    array = NOISE.copy()
    array[0, 3, 1, 2, 1] = value
    return array


@pytest.mark.parametrize(
    ("latents", "said"),
    [
        (NOISE[0, 0], "[1, 48, t, h, w], not [2, 4, 6]"),
        (np.zeros((1, 1, 48, 2, 4, 6), np.float32), "not [1, 1, 48, 2, 4, 6]"),
        (NOISE[:, :16], "[1, 48, t, h, w], not [1, 16, 2, 4, 6]"),
        (np.concatenate([NOISE, NOISE]), "of one video for this model"),
        (NOISE[:, :, :0], "not [1, 48, 0, 4, 6]"),
        (NOISE.astype(np.int32), "floating-point numbers, not int32"),
        (NOISE > 0, "floating-point numbers, not bool"),
        (NOISE.astype(np.complex64), "floating-point numbers, not complex64"),
        (np.array(["a"]), "floating-point numbers, not <U1"),
        (np.array([{}]), "not a readable .npy file"),
        (with_one(np.nan), "1 of the latents are NaN or infinite"),
        (with_one(-np.inf), "1 of the latents are NaN or infinite"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_latents(decode, latents, said):
    assert said in decode(latents)


def written(tmp_path, name):
    path = tmp_path / name
    match name:
        case "none.npy":
            return path
        case "dtype.safetensors":
            save(path, {"latents": mx.array(NOISE).astype(mx.int32)})
        case "two.safetensors":
            save(path, {"a": mx.array(NOISE), "b": mx.array(NOISE)})
        case "list.pt":
            torch.save([1, 2], path)
        case "folder.npy":
            path.mkdir()
        case "archive.npy":
            with path.open("wb") as file:
                np.savez(file, NOISE)
        case "promise.npy":  # a header that promises 64 GiB
            np.save(path, NOISE)
            path.write_bytes(
                path.read_bytes().replace(b"2, 4, 6), }", b"2, 4, 6" + b"0" * 9 + b"), }")
            )
        case _:
            path.write_bytes(b"neither" * 9)
    return path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.npy", "no such file"),
        ("folder.npy", "a folder or a device, not a file of latents"),
        ("text.txt", "latents are read from .safetensors, .npy, .pt"),
        ("damaged.safetensors", "damaged.safetensors"),
        ("damaged.npy", "not a readable .npy file"),
        ("damaged.pt", "not one of torch.save's files"),
        ("promise.npy", "not a readable .npy file"),
        ("archive.npy", "an .npz archive"),
        ("dtype.safetensors", "floating-point numbers, not torch.int32"),
        ("two.safetensors", "2 tensors, none of which is called latents"),
        ("list.pt", "neither a tensor nor a dictionary with latents"),
    ],
)
def test_files_of_latents(decode, tmp_path, name, said):
    assert said in decode(written(tmp_path, name))


class Attack:
    """Pickled, it makes whoever unpickles it write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("protocol", [2, 4])
def test_pickles_run_nothing(decode, tmp_path, protocol):
    evil = tmp_path / "z.pt"
    torch.save({"latents": Attack(tmp_path / "ran")}, evil, pickle_protocol=protocol)
    assert "refused" in decode(evil)
    evil.write_bytes(pickle.dumps(Attack(tmp_path / "ran"), protocol))
    decode(evil)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--codec", "h999"), "no such video codec as 'h999'"),
        (("--codec", "aac"), "no such video codec as 'aac'"),
        (("--codec", "gif"), "gif"),
        (("--tile", "32", "--stride", "48"), "the stride is at most the tile"),
        (("--tile", "40"), "multiples of 16"),
        (("--no-tiling", "--tile", "32"), "leave one out"),
        (("--memory-limit", "4"), "must be a size as 4GiB"),
        (("--memory-limit", "1MiB"), "the least that would do is --memory-limit"),
        (("--fps", "0"), "above 0"),
        (("--dtype", "int8"), "--dtype"),
    ],
    ids=repr,
)
def test_flags(decode, flags, said):
    assert said in decode(NOISE, *flags)


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("nowhere/clip.mp4", "no folder"),
        ("clip.txt", ".txt is not known"),
        ("clip.png", "one picture for 5 frames"),
        ("full", "the folder is there already"),
        ("z", "is a file"),
    ],
)
def test_outputs(decode, tmp_path, out, said):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    (tmp_path / "z").touch()
    assert said in decode(out=out)


@pytest.mark.parametrize("out", ["clip.mp4", "clip.gif", "clip.png", "frames"])
def test_missing_libraries(decode, monkeypatch, out):
    for name in ("av", "PIL", "PIL.Image"):
        monkeypatch.setitem(sys.modules, name, None)
    latents = NOISE[:, :, :1] if out == "clip.png" else NOISE
    assert decode(latents, out=out).endswith("pip install 'torchmlx[video]'")


def test_normalised_twice(decode, tmp_path):
    save(tmp_path / "z.safetensors", {"latents": mx.array(NOISE)}, metadata={"normalized": "false"})
    assert "leave --normalized out" in decode(tmp_path / "z.safetensors", "--normalized")


@pytest.fixture
def broken(tmp_path):
    """wan22-mini with NaN in the last layer of both halves."""
    folder = tmp_path / "broken"
    folder.mkdir()
    shutil.copy(VAE / "config.json", folder)
    name = "diffusion_pytorch_model.safetensors"
    with SafetensorsFile(VAE / name) as file:
        tensors = {info.name: array for info, array in file.items()}
    for half in ("encoder", "decoder"):
        tensors[f"{half}.conv_out.bias"] *= float("nan")
    save(folder / name, tensors)
    return folder


@pytest.mark.parametrize("flags", [(), ("--tile", "32"), ("--dtype", "bfloat16")], ids=repr)
@pytest.mark.parametrize("out", ["clip.mp4", "frames"])
def test_nan_after_decoding(decode, broken, flags, out):
    assert "decoded pixels are NaN" in decode(NOISE, *flags, out=out, vae=broken)


def test_nan_after_encoding(refused, broken, tmp_path):
    write_clip(tmp_path / "clip.webp", iter(moving_shapes(1, 32, 32)))
    arguments = ("--input", tmp_path / "clip.webp", "--out", tmp_path / "z.safetensors")
    assert "latents would be NaN" in refused("encode-video", "--vae", broken, *arguments)
    arguments = ("--input", tmp_path / "clip.webp", "--out", tmp_path / "sheet.png")
    refused("roundtrip", "--vae", broken, *arguments)


@contextmanager
def largest_file(size):
    """Files of this process end there, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("out", ["clip.mp4", "clip.mkv", "clip.gif", "clip.webp", "frames"])
def test_full_disk(decode, tmp_path, out):
    np.save(tmp_path / "z.npy", NOISE)
    with largest_file(1000):
        assert f"{tmp_path / out}: cannot be written" in decode(tmp_path / "z.npy", out=out)


def test_full_disk_under_latents_and_sheets(refused, tmp_path):
    write_clip(tmp_path / "clip.webp", iter(moving_shapes(1, 64, 64)))
    for command, out in (("encode-video", "z.safetensors"), ("roundtrip", "sheet.png")):
        arguments = ("--input", tmp_path / "clip.webp", "--out", tmp_path / out)
        with largest_file(1000):
            assert "cannot be written" in refused(command, "--vae", VAE, *arguments)


@pytest.mark.parametrize("command", ["encode-video", "roundtrip"])
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.mp4", None, "no such file or folder"),
        ("empty.mp4", b"", "not a readable video"),
        ("text.mp4", b"neither" * 99, "not a readable video"),
        ("text.png", b"neither" * 99, "not a readable picture"),
        ("text.gif", b"GIF89a" * 9, "not a readable picture"),
        ("small.png", moving_shapes(1, 8, 40), "40 x 8 is smaller than 16 x 16"),
        ("folder", (), "no frames"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_inputs(refused, tmp_path, command, name, content, said):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, np.ndarray):
        write_clip(path, iter(content))
    elif content is not None:
        path.mkdir()
    out = tmp_path / ("z.safetensors" if command == "encode-video" else "sheet.png")
    assert said in refused(command, "--vae", VAE, "--input", path, "--out", out)


def test_truncated_video(refused, tmp_path):
    write_clip(tmp_path / "clip.mp4", iter(moving_shapes(9, 64, 64)))
    whole = (tmp_path / "clip.mp4").read_bytes()
    (tmp_path / "clip.mp4").write_bytes(whole[: len(whole) // 2])  # its index is at the end
    arguments = ("--input", tmp_path / "clip.mp4", "--out", tmp_path / "z.safetensors")
    assert "not a readable video" in refused("encode-video", "--vae", VAE, *arguments)


def test_frames_of_two_sizes(refused, tmp_path):
    write_clip(tmp_path / "frames", iter(moving_shapes(2, 32, 32)))
    write_clip(tmp_path / "frames" / "a.png", iter(moving_shapes(1, 32, 48)))
    arguments = ("--input", tmp_path / "frames", "--out", tmp_path / "z.safetensors")
    said = refused("encode-video", "--vae", VAE, *arguments)
    assert "frame 2 is 48 x 32, those before are 32 x 32" in said


def test_more_frames_than_memory(refused, tmp_path):
    write_clip(tmp_path / "clip.webp", iter(moving_shapes(5, 64, 64)))
    arguments = ("--input", tmp_path / "clip.webp", "--out", tmp_path / "z.safetensors")
    said = refused("encode-video", "--vae", VAE, *arguments, "--memory-limit", "40KiB")
    assert "more than 3 frames of 64 x 64 do not fit" in said


@pytest.mark.parametrize(
    ("out", "said"), [("z.npy", ".safetensors"), ("nowhere/z.safetensors", "folder that is there")]
)
def test_outputs_of_encode(refused, tmp_path, out, said):
    arguments = ("--input", tmp_path / "clip.mp4", "--out", tmp_path / out)
    assert said in refused("encode-video", "--vae", VAE, *arguments)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "config.json: no such file"),
        ('{"_class_name": "AutoencoderKL"}', "'AutoencoderKL' is not supported"),
        ("{}", "diffusion_pytorch_model.safetensors"),
    ],
)
def test_autoencoders(decode, tmp_path, config, said):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert said in decode(vae=tmp_path)
