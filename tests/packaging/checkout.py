"""The checkout under test, and running Python on it."""

import os
import sys
from pathlib import Path

from tests.bounded import run

ROOT = Path(__file__).resolve().parents[2]

# Seconds that pip may need for an environment on a busy machine.
INSTALLING = 1800


def tracked_files(*folders: str) -> list[Path]:
    """Files under version control that exist, relative to the root; symlinks are not followed."""
    listing = run(["git", "ls-files", "-z", "--", *folders], cwd=ROOT)
    assert listing.returncode == 0, listing.stderr
    names = listing.stdout.rstrip("\0").split("\0")
    return [Path(name) for name in names if os.path.lexists(ROOT / name)]


def run_python(*arguments: str, **options) -> str:
    """stdout of this interpreter; its stderr is in the failure when it fails."""
    options.setdefault("env", {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    command = [options.pop("python", sys.executable), *arguments]
    done = run(command, INSTALLING, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
