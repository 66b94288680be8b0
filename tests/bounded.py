"""Programs and threads that tests wait for: none for ever, and what hangs is named."""

import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

# Below what pytest gives a test (pyproject.toml), so that the failure is this program's.
SECONDS = 250


def run(
    command: Sequence[str | Path], seconds: float = SECONDS, **options
) -> subprocess.CompletedProcess[str]:
    """What became of `command`, and what it wrote; a failure if it has not ended in time."""
    options = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with started(command, **options) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as late:
            told = b"".join(part or b"" for part in (late.stdout, late.stderr)).decode()
            pytest.fail(f"{command} had not ended after {seconds} s; it wrote\n{told}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextmanager
def started(command: Sequence[str | Path], **options) -> Iterator[subprocess.Popen]:
    """A process that is no more at the end, however the test ends."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def join(*threads: threading.Thread, seconds: float = 60) -> None:
    """Wait for threads; a failure that names those still at work."""
    for thread in threads:
        thread.join(seconds)
    late = [thread.name for thread in threads if thread.is_alive()]
    assert not late, f"still at work after {seconds} s: {late}"
