"""The checkout under test, and running Python on it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tracked_files(*folders: str) -> list[Path]:
    """Files under version control that exist, relative to the root; symlinks are not followed."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--", *folders], cwd=ROOT, capture_output=True, check=True
    )
    names = listing.stdout.decode().rstrip("\0").split("\0")
    return [Path(name) for name in names if os.path.lexists(ROOT / name)]


def run_python(*arguments: str, **options) -> str:
    """stdout of this interpreter; its stderr is in the failure when it fails."""
    options.setdefault("env", {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    command = [options.pop("python", sys.executable), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
