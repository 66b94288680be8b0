"""What the simulator compiled is found again, by whichever checkout looks for it."""

import importlib.util
import os
import shutil
import sys
import time

from torchmlx.kernels.simulator import compiler

# mlx_utils.h comes precompiled; this includes its headers once more, as published kernels do.
SOURCE = (
    "#include <metal_math>\n#include <metal_simdgroup>\nfloat twice(float x) { return x + x; }\n"
)


def other_checkout(folder):
    """The compiler module of a copy of the simulator's folder, under a name of its own."""
    shutil.copytree(compiler.HERE, folder)
    spec = importlib.util.spec_from_file_location(
        f"{compiler.__package__}.{folder.name}", folder / "compiler.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_checkouts_share_what_was_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHMLX_CACHE", str(tmp_path / "cache"))
    first, second = other_checkout(tmp_path / "first"), other_checkout(tmp_path / "second")
    assert first.prelude("syntax") == second.prelude("syntax")
    for module in first, second:
        source = tmp_path / f"{module.HERE.name}.metal"
        source.write_text(SOURCE)
        module._run(module.syntax_command(str(source)), "twice")


def test_versions_of_last_month_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHMLX_CACHE", str(tmp_path / "cache"))
    ages = {"old": 40, "new": 3}
    for name, days in ages.items():
        folder = tmp_path / "cache" / "simulator" / name
        folder.mkdir(parents=True)
        (folder / "kernel").touch()
        os.utime(folder, (time.time() - days * 24 * 3600,) * 2)
    made = other_checkout(tmp_path / "checkout").cache_folder()
    assert sorted(p.name for p in made.parent.iterdir()) == sorted(["new", made.name])
