"""Compiling as Apple's compiler does: with real address spaces and Metal's rules for bfloat.

clang's own errors come first. Three things that clang allows and Metal does not are then found in
clang's syntax tree: C-style casts between address spaces, and implicit conversions of float to
bfloat and of bfloat to half. Two things that Metal allows and clang does not are forgiven: copying
a struct out of or into an address space, and threadgroup variables of structs.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path

from ..recording import Recorded
from . import compiler
from .program import program

_ERROR = re.compile(r"^(.*?):(\d+):\d+: (?:fatal )?error: (.*)$")
_UNSET = re.compile(r"^kernel\.metal:(\d+):\d+: warning: (variable .*?)(?: \[.*)?$", re.MULTILINE)
_NOTE = re.compile(r"^([^:]*kernel\.metal):(\d+):\d+: note: ")
_COPY = re.compile(r"implicit (?:copy|move) (?:constructor|assignment operator)\) not viable: .*")
# A threadgroup variable of a struct: Metal constructs none, clang looks for a way to.
_MADE = "no matching constructor for initialization of 'threadgroup "
_PLACE = re.compile(r"(?:([^\s<>,:]+):(\d+):\d+|\b(col):\d+)")
_CAST = re.compile(r"CastExpr .*?> ('[^']*'(?::'[^']*')?)(.*?) <(\w+)>(.*)")
# A threadgroup variable that the rewriter leaves alone.
_PLAIN = {
    "automatic variable qualified with an address space": (
        "a threadgroup variable takes no initialiser, and is declared by its own statement"
    )
}
_BFLOAT, _HALF = "'__bf16'", "'_Float16'"


def check_syntax(
    recorded: Recorded,
    include: Sequence[str | PathLike[str]] = (),
    function_constants: Mapping[int, int | bool] | None = None,
) -> tuple[str, ...]:
    """What Apple's compiler would reject in a recorded source: "line 3: ...", none if it is sound.

    Lines are those of `recorded.source`. Raises NoClang without a compiler.
    """
    return tuple(text for kind, _, text in _found(recorded, include, function_constants) if kind)


def unset_variables(
    recorded: Recorded,
    include: Sequence[str | PathLike[str]] = (),
    function_constants: Mapping[int, int | bool] | None = None,
) -> tuple[tuple[int, str], ...]:
    """(line of `recorded.source`, what) where clang sees that a private variable was not set."""
    found = _found(recorded, include, function_constants)
    return tuple((line, text) for kind, line, text in found if not kind)


def _found(recorded, include, function_constants) -> list[tuple[bool, int, str]]:
    """(whether an error, line or 0, text), from the cache where they are."""
    folders = tuple(Path(folder) for folder in include)
    text = program(recorded, folders, function_constants).cpp(syntax=True)
    kept = compiler.cache_folder() / f"syntax-{compiler.key_of(text)}.json"
    if not kept.exists():
        found = list(dict.fromkeys(_check(text)))
        compiler.keep(kept, lambda path: path.write_text(json.dumps(found)))
    return json.loads(kept.read_text())


def _check(text: str) -> Iterator[tuple[bool, int, str]]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.metal").write_text(text)
        command = compiler.syntax_command("kernel.metal")
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    for error in (*_rejected(done.stderr), *_forbidden(done.stdout)):
        yield True, 0, error
    for line, warning in _UNSET.findall(done.stderr):
        yield False, int(line), warning


def _rejected(stderr: str) -> Iterator[str]:
    """clang's errors, but for copies of structs."""
    groups: list[list[str]] = []
    for line in stderr.splitlines():
        if _ERROR.match(line):
            groups.append([line])
        elif groups:
            groups[-1].append(line)
    for first, *notes in groups:
        if any((match := _COPY.search(note)) and "address space" in match[0] for note in notes):
            continue
        file, line, message = _ERROR.match(first).groups()  # pyright: ignore[reportOptionalMemberAccess]
        if message.startswith(_MADE):
            continue
        if str(compiler.headers()) in file:
            # Where the kernel used what is wrong in our headers.
            used = next((m for m in map(_NOTE.match, notes) if m), None)
            file, line = used.groups() if used else (file, line)
        yield f"{_where(file)}line {line}: {_PLAIN.get(message, message)}"


def _where(file: str) -> str:
    return "" if file.endswith("kernel.metal") else f"{Path(file).name} "


def _forbidden(tree: str) -> Iterator[str]:
    """Casts and conversions in clang's printed syntax tree that Metal does not have.

    The tree prints a file or line only where it differs from the place printed before.
    """
    file, line = "kernel.metal", 0
    nodes = tree.splitlines()
    for node, child in zip(nodes, [*nodes[1:], ""], strict=True):
        began: tuple[str, int] | None = None
        for name, number, column in _PLACE.findall(node.partition("'")[0]):
            if not column:
                file = file if name == "line" else name
                line = int(number)
            began = began or (file, line)
        match = _CAST.search(node)
        if match is None:
            continue
        message = _judge(node, child, *match.groups())
        if message:
            named, at = began or (file, line)
            yield f"{_where(named)}line {at}: {message}"


def _judge(node: str, child: str, kind: str, _: str, cast: str, rest: str) -> str:
    if cast == "AddressSpaceConversion":
        return f"cast to {kind.partition(':')[0]} changes the address space"
    implicit = "ImplicitCastExpr" in node and "part_of_explicit_cast" not in rest
    if cast != "FloatingCast" or not implicit:
        return ""
    if kind.endswith(_BFLOAT):
        return "implicit conversion to bfloat: write bfloat(...)"
    if kind.endswith(_HALF) and _BFLOAT in child:
        return "implicit conversion of bfloat to half: write half(...)"
    return ""
