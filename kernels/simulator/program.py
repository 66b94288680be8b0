"""From what MLX records to what the compiler and the runtime need: text, buffers, a caller."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..recording import Recorded
from .rewrite import rewrite

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[^\n]*$', re.MULTILINE)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*$", re.MULTILINE)

# MLX puts these before every custom kernel; include/mlx_utils.h stands for them.
PROVIDED = {
    f"mlx/backend/metal/kernels/{name}.h"
    for name in ("utils", "bf16", "bf16_math", "complex", "defines", "logging")
}


@dataclass(frozen=True)
class Buffer:
    """A parameter with memory behind it.

    source: ("input", i), ("shape", i), ("strides", i), ("ndim", i) or ("output", i).
    """

    name: str
    source: tuple[str, int]
    reference: bool


@dataclass(frozen=True)
class Program:
    """A kernel's text, ready for `rewrite`, and its buffers in the order of the signature.

    text: the generated source with its `#include "..."` resolved.
    caller: a C++ function that calls the kernel with the runtime's buffers.
    """

    name: str
    text: str
    buffers: tuple[Buffer, ...]
    caller: str
    constants: Mapping[int, int | bool]

    def cpp(self, syntax: bool = False) -> str:
        """The C++ to compile: the rewritten text, and for a run the function that calls it."""
        text = rewrite(self.text, self.constants, syntax)
        return text if syntax else f'{text}\n#line 1 "caller"\n{self.caller}'


def program(
    recorded: Recorded,
    include: tuple[Path, ...] = (),
    constants: Mapping[int, int | bool] | None = None,
) -> Program:
    """The program of a recorded launch.

    include: folders for `#include "..."`; constants: values of function constants by number.
    FileNotFoundError names an include that is in none of them.
    """
    buffers, arguments = _signature(recorded)
    template = f"<{recorded.instantiation}>" if recorded.instantiation else ""
    caller = (
        'extern "C" __attribute__((no_sanitize("thread", "undefined"), visibility("default"))) '
        "void sim_kernel(void** buffers) {\n"
        "  [[maybe_unused]] const sim::Thread& t = *sim::sim_thread;\n"
        f"  {_function(recorded)}{template}({', '.join(arguments)});\n}}\n"
    )
    text = _with_includes(recorded.source, include)
    return Program(recorded.name, text, tuple(buffers), caller, constants or {})


def _function(recorded: Recorded) -> str:
    match = re.search(r"\[\[kernel\]\] void (\w+)\(", recorded.source)
    if match is None:
        raise ValueError(f"{recorded.name}: no [[kernel]] function in the source")
    return match.group(1)


def _signature(recorded: Recorded) -> tuple[list[Buffer], list[str]]:
    """The buffers, and a C++ expression for each argument."""
    buffers: list[Buffer] = []
    arguments: list[str] = []
    inputs = outputs = 0
    for parameter in recorded.parameters:
        kind, name = parameter.rsplit(" ", 1)
        if kind in ("uint", "uint3"):
            fields = f"t.{name}[0], t.{name}[1], t.{name}[2]"
            arguments.append(f"uint3({fields})" if kind == "uint3" else f"t.{name}")
            continue
        last = buffers[-1] if buffers else None
        belongs = last is not None and last.source[0] != "output"
        owner = _owner(buffers, name) if belongs else None
        if owner is not None:
            source = (name.removeprefix(owner.name + "_"), owner.source[1])
        elif kind.startswith("const"):
            source, inputs = ("input", inputs), inputs + 1
        else:
            source, outputs = ("output", outputs), outputs + 1
        buffers.append(Buffer(name, source, kind.endswith("&")))
        argument = f"static_cast<{_pointee(kind)}*>(buffers[{len(buffers) - 1}])"
        arguments.append(f"*{argument}" if kind.endswith("&") else argument)
    if (inputs, outputs) != (len(recorded.inputs), len(recorded.outputs)):
        raise ValueError(f"{recorded.name}: its signature does not match its arrays")
    return buffers, arguments


def _owner(buffers: list[Buffer], name: str) -> Buffer | None:
    """The input whose shape, strides or ndim the parameter `name` is."""
    owner = next(b for b in reversed(buffers) if b.source[0] == "input")
    parts = [f"{owner.name}_{part}" for part in ("shape", "strides", "ndim")]
    return owner if name in parts else None


def _pointee(kind: str) -> str:
    return kind.rstrip("*& ")


def _with_includes(
    text: str, folders: tuple[Path, ...], file: str = "kernel.metal", seen: set[str] | None = None
) -> str:
    """`text` of `file` with each `#include "..."` replaced by that file, once.

    #line directives keep the compiler's line numbers those of the files.
    """
    seen = set(PROVIDED) if seen is None else seen
    parts, end = [f'#line 1 "{file}"\n'], 0
    for match in _INCLUDE.finditer(text):
        name = match.group(1)
        parts.append(text[end : match.start()])
        end = match.end()
        if name in seen:
            continue
        seen.add(name)
        found = next((f / name for f in folders if (f / name).is_file()), None)
        if found is None:
            raise FileNotFoundError(f'#include "{name}": not in {[str(f) for f in folders]}')
        inner = _with_includes(_ONCE.sub("", found.read_text()), folders, name, seen)
        parts.append(f'{inner}\n#line {text.count(chr(10), 0, end) + 1} "{file}"\n')
    return "".join([*parts, text[end:]])
