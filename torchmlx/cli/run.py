"""`torchmlx run`: a script that says `import torch`, unchanged, on torchmlx."""

import argparse
import runpy
import sys
import traceback
from pathlib import Path

from ..errors import InputError

DESCRIPTION = """\
Run a Python script that says `import torch`; it, and all that it imports, gets torchmlx.

Everything after the script's name belongs to the script. An error in it is shown as Python shows
it, and ends with code 1.
"""


def add(commands) -> None:
    """Add the command and its flags to `commands`."""
    parser = commands.add_parser(
        "run", help="run a torch script unchanged", description=DESCRIPTION
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--report",
        action="store_true",
        help="at the end tell on stderr, with file and line, which names of torch the script and\n"
        "the modules beside it use that torchmlx lacks",
    )
    parser.add_argument(
        "--cuda-as-mps",
        action="store_true",
        help='"cuda" in the script means this machine\'s GPU (its CPU where it has none)',
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT names a module, as for python -m"
    )
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument(
        "args", metavar="ARG", nargs=argparse.REMAINDER, help="passed to the script"
    )


def run(args: argparse.Namespace) -> int:
    """Run the script and return its exit code."""
    from .. import runner

    script = args.script
    if not args.module and not Path(script).is_file():
        raise InputError(f"no such script: {script}")
    runner.install()
    if args.cuda_as_mps:
        from ..core import device

        device.cuda_as_here()
    sys.argv = [script, *args.args]
    sys.path.insert(0, "" if args.module else str(Path(script).resolve().parent))
    before = set(sys.modules)
    code, failure = _run(script, args.module)
    if args.report:
        folder = Path.cwd() if args.module else Path(script).resolve().parent
        _report(_sources(script, args.module, folder, set(sys.modules) - before), failure)
    return code


def _run(script: str, module: bool) -> tuple[int, str | None]:
    """The exit code, and what an AttributeError said that ended the script."""
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None), None
    except KeyboardInterrupt:
        traceback.print_exc()
        return 130, None
    except Exception as error:
        _print_from_the_script(error)
        place = traceback.extract_tb(error.__traceback__)[-1]
        if isinstance(error, (AttributeError, NotImplementedError, ImportError)):
            return 1, f"{place.filename}:{place.lineno}  {error}"
        return 1, None
    return 0, None


def _print_from_the_script(error: Exception) -> None:
    """Python's traceback without the frames that are ours and runpy's."""
    frame = error.__traceback__
    own = (__file__, runpy.__file__, "<frozen runpy>")
    while frame and frame.tb_frame.f_code.co_filename in own:
        frame = frame.tb_next
    traceback.print_exception(type(error), error, frame)


def _sources(script: str, module: bool, folder: Path, loaded: set[str]) -> list[Path]:
    """The script, and modules that were loaded from its folder."""
    files = [] if module else [Path(script)]
    for name in sorted(loaded):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and file.endswith(".py"):
            path = Path(file).resolve()
            if path.is_relative_to(folder) and "site-packages" not in path.parts:
                files.append(path)
    return files


def _report(files: list[Path], failure: str | None) -> None:
    from .. import runner

    missing = runner.missing_names(dict.fromkeys(files))
    count = len({entry.name for entry in missing})
    print(f"torchmlx: {count} names of torch used here are missing", file=sys.stderr)
    for entry in missing:
        print(f"{entry.file}:{entry.line}  {entry.name}", file=sys.stderr)
    if failure:
        print(f"torchmlx: the script ended at {failure}", file=sys.stderr)
