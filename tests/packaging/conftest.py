"""A clean copy of the checkout, and the sdist and wheel built from it."""

import shutil
import sysconfig
from pathlib import Path

import pytest

from .checkout import ROOT, run_python, tracked_files


@pytest.fixture(scope="session")
def checkout(tmp_path_factory) -> Path:
    """The tracked files alone, as a fresh clone would have them."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in tracked_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="session")
def distributions(checkout, tmp_path_factory) -> dict[str, Path]:
    """`sdist`, and `wheel` built from that sdist as a package index would have it."""
    pytest.importorskip("build", reason="needs the package `build` (extra dev)")
    folder = tmp_path_factory.mktemp("dist")
    run_python("-m", "build", "--outdir", str(folder), str(checkout), cwd=folder)
    return {"sdist": next(folder.glob("*.tar.gz")), "wheel": next(folder.glob("*.whl"))}


@pytest.fixture
def environment(tmp_path) -> Path:
    """The python of a new environment that has torchmlx's dependencies but not torchmlx."""
    run_python("-m", "venv", str(tmp_path / "env"))
    python = tmp_path / "env/bin/python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run_python("-c", ask, python=python).strip())
    # Appended after the new environment's own packages; .pth files of the old one are not read,
    # so an editable torchmlx there stays invisible.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python
