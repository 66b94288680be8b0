"""Output for both readers: rich on a terminal, plain text in a pipe."""

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence


def print_anything() -> None:
    """Let stdout show `?` for what its encoding has not, where it would fail amid a text."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def print_json(value: object) -> None:
    """One JSON value on stdout, in ASCII where that has no UTF-8."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(value, indent=2, ensure_ascii=not unicode))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; in a pipe columns are aligned by spaces and lines are never wrapped."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table(*columns, box=None, padding=(0, 2, 0, 0), header_style="bold")
        for row in rows:
            table.add_row(*map(escape, row))
        Console().print(table)
        return
    lines = [columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (f"{cell:{width}}" for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def status(message: str) -> contextlib.AbstractContextManager:
    """A spinner on stderr while the block runs; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        return contextlib.nullcontext()
    from rich.console import Console
    from rich.markup import escape

    return Console(stderr=True).status(escape(message))


@contextlib.contextmanager
def bar(message: str) -> Iterator[Callable[..., None] | None]:
    """A progress bar on stderr, with the time left; it goes when all is done.

    Call what this yields with (done, total), and a new message if there is one. Yields None where
    stderr is no terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(message, total=None)

        def report(done: int, total: int, now: str = message) -> None:
            progress.update(task, completed=done, total=total, description=now)
            if done >= total:
                progress.stop()

        yield report


def size(count: float) -> str:
    """A number of bytes for people: `1.25 GiB`, or `12.5 MiB` below a tenth of one."""
    return f"{count / 2**30:.2f} GiB" if count >= 0.1 * 2**30 else f"{count / 2**20:.1f} MiB"
