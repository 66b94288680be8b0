"""Builds the C++ extension torchmlx.kernels._native; pyproject.toml says everything else.

Linux only: on a Mac MLX's own CPU operations call Accelerate. An installation without it works and
is slow, so a failed build is told and does not fail the installation; with TORCHMLX_NATIVE=require
it does, and TORCHMLX_NATIVE=skip builds nothing.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("torchmlx/kernels/cpu")

FAILED = """
torchmlx: the C++ kernels were not built: {}
torchmlx: everything works, but is slow on this machine's CPU. To mend it, install a C++20 compiler
torchmlx: (Debian: apt-get install g++), and install torchmlx again; `torchmlx doctor` tells more.
"""


class BuildNative(build_ext):
    """Builds with CMake."""

    def build_extension(self, ext: Extension) -> None:
        """Leave the module in the build folder, or say why there is none."""
        target = Path(self.get_ext_fullpath(ext.name))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self._run_cmake(), target)
        except (OSError, subprocess.CalledProcessError) as error:
            if os.environ.get("TORCHMLX_NATIVE") == "require":
                raise
            print(FAILED.format(error), file=sys.stderr)

    def copy_file(self, infile, outfile, *args, **options):
        """In one step: processes that run from a checkout may be loading the module."""
        part = Path(outfile).with_name(f".{Path(outfile).name}.{os.getpid()}")
        shutil.copy2(infile, part)
        part.replace(outfile)
        return outfile, True

    def _run_cmake(self) -> Path:
        folder = Path(self.build_temp, "native").resolve()
        # Fresh: the paths of an earlier build's isolated environment are gone. Objects are kept.
        configure = ["cmake", "--fresh", "-S", str(SOURCES.resolve()), "-B", str(folder)]
        configure += [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
        if shutil.which("ninja"):
            configure += ["-G", "Ninja"]
        subprocess.run(configure, check=True)
        jobs = str(os.cpu_count() or 1)
        subprocess.run(["cmake", "--build", str(folder), "--parallel", jobs], check=True)
        return next(folder.glob("_native*.so"))


def wanted() -> list[Extension]:
    """The extension, where it is of use."""
    if sys.platform != "linux" or os.environ.get("TORCHMLX_NATIVE") == "skip":
        return []
    return [Extension("torchmlx.kernels._native", sources=[], optional=True)]


setup(ext_modules=wanted(), cmdclass={"build_ext": BuildNative})
