"""Running a recorded launch: compile, hand over the buffers, read back what happened."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from os import PathLike
from pathlib import Path
from typing import TypedDict

import mlx.core as mx
import numpy as np

from ..recording import Recorded
from . import compiler
from .program import Buffer, Program, program
from .result import ERROR, SPECIFICATION, Report, Result, Traffic
from .syntax import check_syntax, unset_variables

MODES = ("checked", "fast")

# Memory file systems spare a copy to disk.
_SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None

_BITS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}
_TRAFFIC = tuple(Traffic.__dataclass_fields__)


class Options(TypedDict, total=False):
    """How to run a kernel.

    mode: "checked", the default, looks for faults; "fast" only computes.
    seed: 0, the default, runs threadgroups, simdgroups and lanes in order; others permute them.
    traffic: count memory traffic, as slow as a checked run, which then leaves out arithmetic,
        alignment and private arrays.
    include: folders for `#include "..."`; function_constants: values by number. MLX's own kernels
        need both, ours neither.
    syntax: reject first what Apple's compiler rejects, as `check_syntax`; the default.
    timeout: seconds of wall time for the run, 120 unless given.
    """

    mode: str
    seed: int
    traffic: bool
    include: Sequence[str | PathLike[str]]
    function_constants: Mapping[int, int | bool] | None
    syntax: bool
    timeout: float


def execute(
    recorded: Recorded,
    inputs: Sequence[mx.array],
    init_value: float | None = None,
    mode: str = "checked",
    seed: int = 0,
    traffic: bool = False,
    include: Sequence[str | PathLike[str]] = (),
    function_constants: Mapping[int, int | bool] | None = None,
    syntax: bool = True,
    timeout: float = 120.0,
) -> Result:
    """Run one recorded launch on `inputs`, which are in its order, shapes and dtypes.

    The other arguments are those of `simulate`. Raises ValueError for inputs that do not fit.
    """
    _check(recorded, inputs, mode)
    folders = tuple(Path(folder) for folder in include)
    if syntax and (errors := check_syntax(recorded, folders, function_constants)):
        raise compiler.CompileError(recorded.name, errors)
    made = program(recorded, folders, function_constants)
    binary = compiler.compile_kernel(made.cpp(), "counted" if traffic else mode, recorded.name)
    flags = f"{int(mode == 'checked')} {int(traffic)} {seed}"
    with tempfile.TemporaryDirectory(dir=_SCRATCH) as folder:
        files = _Files(Path(folder), recorded, made, inputs, init_value)
        job = files.write(flags)
        printed = _run(binary, job, timeout)
        outputs = files.read_outputs()
    result = _result(recorded, binary, printed, outputs, traffic, timeout)
    if mode != "checked":
        return result
    unset = unset_variables(recorded, folders, function_constants)
    return replace(result, reports=(*result.reports, *_unset_reports(unset, recorded.source)))


def _check(recorded: Recorded, inputs: Sequence[mx.array], mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is none of {', '.join(MODES)}")
    given = tuple((tuple(x.shape), x.dtype) for x in inputs)
    if given != recorded.inputs:
        raise ValueError(f"{recorded.name} was recorded for {recorded.inputs}, not {given}")
    threads = prod(recorded.threadgroup)
    if threads > 1024:
        raise ValueError(f"{recorded.name}: a threadgroup of {threads} threads; 1024 are the limit")


def _run(binary: Path, job: Path, timeout: float) -> str | None:
    """What the run prints; None if it does not end in time."""
    try:
        command = [compiler.runner(), binary, job]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise RuntimeError(f"the simulator failed ({done.returncode}): {done.stderr.strip()}")
    return done.stdout


class _Files:
    """The buffers of a launch as files in `folder`."""

    def __init__(self, folder: Path, recorded: Recorded, made: Program, inputs, init_value):
        self.folder, self.recorded, self.made = folder, recorded, made
        self.inputs, self.init_value = inputs, init_value

    def write(self, flags: str) -> Path:
        """Write the input files and the job; returns the job's path."""
        grid = " ".join(map(str, self.recorded.grid))
        threadgroup = " ".join(map(str, self.recorded.threadgroup))
        lines = [f"{flags} grid {grid} threadgroup {threadgroup}"]
        for i, buffer in enumerate(self.made.buffers):
            path = self.folder / str(i)
            size, element, role = self._write(buffer, path)
            lines.append(f"{path} {size} {element} {self._kind(buffer)} {role} {buffer.name}")
        job = self.folder / "job"
        job.write_text("\n".join(lines) + "\n")
        return job

    def _kind(self, buffer: Buffer) -> str:
        what, i = buffer.source
        arrays = {"input": self.recorded.inputs, "output": self.recorded.outputs}.get(what)
        return "float" if arrays and mx.issubdtype(arrays[i][1], mx.floating) else "other"

    def _write(self, buffer: Buffer, path: Path) -> tuple[int, int, str]:
        """Write what `buffer` holds at first; returns its bytes, an element's, and its role."""
        what, i = buffer.source
        if what == "output":
            shape, dtype = self.recorded.outputs[i]
            size = prod(shape) * dtype.size
            if self.init_value is None:
                return size, dtype.size, "output"
            _write_array(path, mx.full(shape, self.init_value, dtype))
            return size, dtype.size, "inout"
        x = self.inputs[i]
        strides = _strides(x.shape) if self.recorded.row_contiguous else _own_strides(x)
        values = {
            "input": lambda: _in_memory_order(x, strides),
            "shape": lambda: mx.array(x.shape, mx.int32),
            "strides": lambda: mx.array(strides, mx.int64),
            "ndim": lambda: mx.array(x.ndim, mx.int32),
        }[what]()
        _write_array(path, values)
        constant = what != "input" or buffer.reference
        return values.nbytes, values.itemsize, "constant" if constant else "input"

    def read_outputs(self) -> tuple[mx.array, ...]:
        """The outputs; zeros where the run left none."""
        found = {b.source[1]: i for i, b in enumerate(self.made.buffers) if b.source[0] == "output"}
        return tuple(
            _read_array(self.folder / str(found[i]), shape, dtype)
            for i, (shape, dtype) in enumerate(self.recorded.outputs)
        )


def _strides(shape: Sequence[int]) -> list[int]:
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def _own_strides(x: mx.array) -> list[int]:
    """The strides of `x` in elements where its axes are a contiguous array's in another order."""
    mx.eval(x)
    view = np.asarray(x.view(_BITS[min(x.itemsize, 8)]))
    found = [step // x.itemsize for step in view.strides]
    order = sorted(range(x.ndim), key=lambda i: -found[i])
    packed = _strides([x.shape[i] for i in order])
    return found if [found[i] for i in order] == packed else _strides(x.shape)


def _in_memory_order(x: mx.array, strides: Sequence[int]) -> mx.array:
    """`x` with its axes in the order in which they lie in memory."""
    return x.transpose(sorted(range(x.ndim), key=lambda i: -strides[i])) if x.ndim > 1 else x


def _write_array(path: Path, x: mx.array) -> None:
    """The elements of `x` in row-major order, whatever its layout."""
    # Not flattened: MLX counts an axis with 32 bits. A scalar has no axis to view otherwise.
    whole = mx.contiguous(x if x.ndim else x.reshape(1))
    np.asarray(whole.view(_BITS[min(x.itemsize, 8)])).tofile(path)


def _read_array(path: Path, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    if not path.exists() or path.stat().st_size != prod(shape) * dtype.size:
        return mx.zeros(shape, dtype)
    bits = mx.array(np.fromfile(path, np.dtype(f"u{min(dtype.size, 8)}")))
    return bits.view(dtype).reshape(shape)


def _result(recorded, binary, printed, outputs, traffic, timeout) -> Result:
    if printed is None:
        report = Report(ERROR, "timeout", f"did not end within {timeout:g} s: an endless loop?")
        return Result(recorded.name, outputs, (report,), completed=False, source=recorded.source)
    fields: dict[str, str] = {}
    raw = []
    for line in printed.splitlines():
        key, _, rest = line.partition("\t")
        if key == "report":
            raw.append(rest.split("\t"))
        else:
            fields[key] = rest
    counted = {name: int(fields[name]) for name in _TRAFFIC if name in fields}
    return Result(
        name=recorded.name,
        outputs=outputs,
        reports=_reports(raw, binary, recorded.source),
        traffic=Traffic(**counted) if traffic else None,
        completed="crashed" not in fields,
        seconds=float(fields["seconds"]),
        threads=prod(recorded.grid),
        threadgroups=int(fields["groups"]),
        threadgroup_bytes=int(fields["threadgroup_bytes"]),
        barriers=int(fields["barriers"]),
        simdgroup_functions=int(fields["simdgroup_functions"]),
        source=recorded.source,
    )


def _reports(raw: list[list[str]], binary: Path, source: str) -> tuple[Report, ...]:
    """Reports from the runtime's fields, with places for addresses."""
    addresses = {int(fields[i]) for fields in raw for i in (6, 7)} - {0}
    places = _places(binary, sorted(addresses))
    found = []
    for severity, kind, variable, count, file, line, pc, other, *rest in raw:
        in_thread, threadgroup, thread, simdgroup, lane, message = rest
        file, at = places.get(int(pc), ("", 0)) if int(pc) else (file, int(line))
        other_file, other_line = places.get(int(other), ("", 0))
        own = _is_kernel(file)
        lines = source.split("\n")
        found.append(
            Report(
                severity=severity,
                kind=kind,
                message=message,
                line=at,
                file="" if own else Path(file).name,
                place=_place(file, at, source),
                text=lines[at - 1].strip() if own and 0 < at <= len(lines) else "",
                variable=variable,
                threadgroup=_triple(threadgroup) if in_thread == "1" else None,
                thread=_triple(thread) if in_thread == "1" else None,
                simdgroup=int(simdgroup),
                lane=int(lane),
                count=int(count),
                other_place=_place(other_file, other_line, source),
            )
        )
    return tuple(found)


def _unset_reports(found: Sequence[tuple[int, str]], source: str) -> Iterator[Report]:
    """What clang sees without a run; in one, such a variable is not always a NaN."""
    lines = source.split("\n")
    for line, message in found:
        place, text = _place("kernel.metal", line, source), lines[line - 1].strip()
        # Others may be, or are in a branch that may never be taken.
        severity = ERROR if "is uninitialized when used here" in message else SPECIFICATION
        yield Report(severity, "uninitialised", message, line=line, place=place, text=text)


def _triple(text: str) -> tuple[int, int, int]:
    x, y, z = map(int, text.split(","))
    return x, y, z


def _is_kernel(file: str) -> bool:
    return file.endswith("kernel.metal")


def _place(file: str, line: int, source: str) -> str:
    """ "source line 3" and the like; "" for an unknown place."""
    if line == 0:
        return ""
    if not _is_kernel(file):
        return f"{Path(file).name} line {line}"
    signature = re.search(
        r"^(?:template <[^\n]*>\n)?\[\[kernel\]\] void \w+\(\n.*?\) \{\n", source, re.M | re.S
    )
    if signature is None:
        return f"generated line {line}"
    first = source.count("\n", 0, signature.start()) + 1
    body = source.count("\n", 0, signature.end()) + 1
    if line >= body:
        return f"source line {line - body + 1}"
    return f"header line {line}" if line < first else f"generated line {line}"


def _places(binary: Path, addresses: list[int]) -> dict[int, tuple[str, int]]:
    """Address -> (file, line) in the kernel's own text, through functions inlined from ours."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line-19")
    if not addresses or tool is None:
        return {}
    command = [tool, "-a", "-i", "-e", str(binary), *map(hex, addresses)]
    printed = subprocess.run(command, capture_output=True, text=True).stdout
    places: dict[int, tuple[str, int]] = {}
    address = 0
    for text in printed.splitlines():
        if text.startswith("0x"):
            address = int(text, 16)
            continue
        file, _, rest = text.partition(" (")[0].rpartition(":")
        ours = str(compiler.headers()) in file or file.endswith("caller")
        if not ours and rest.isdigit() and address not in places:
            places[address] = (file, int(rest))
    return places
