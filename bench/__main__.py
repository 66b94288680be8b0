"""`python -m bench` lists the benchmarks; `python -m bench NAME...` runs some of them.

A benchmark is a module of this folder: its docstring's first line says what it measures against
what, and its `main()` measures and prints.
"""

import argparse
import ast
import importlib
import sys
from pathlib import Path


def find_benchmarks() -> dict[str, str]:
    """Name to first docstring line of every benchmark here, read without importing any."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if "main" in functions and path.stem != "__main__":
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the named benchmarks, or list all; 2 when a name is unknown."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run")
    names = parser.parse_args(argv).names
    benchmarks = find_benchmarks()
    if unknown := [name for name in names if name not in benchmarks]:
        known = ", ".join(benchmarks) or "none yet"
        parser.error(f"no benchmark named {', '.join(unknown)}; there are: {known}")
    if not benchmarks:
        print("no benchmarks yet")
    elif not names:
        width = max(map(len, benchmarks))
        print("\n".join(f"{name:{width}}  {about}" for name, about in benchmarks.items()))
    for name in names:
        importlib.import_module(f"bench.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
