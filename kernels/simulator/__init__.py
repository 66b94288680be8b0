"""Metal kernels on Linux: the source that MLX would compile on a Mac, run, checked and counted.

    result = simulate(source, input_names=["x"], output_names=["y"], inputs=[x],
                      grid=(n, 1, 1), threadgroup=(256, 1, 1),
                      output_shapes=[x.shape], output_dtypes=[x.dtype])
    result.outputs, result.reports

"checked" runs look at every access to memory and every barrier; "fast" runs only compute, at real
sizes. `check_syntax` compiles with real address spaces. `simulated()` serves our own kernels.
Needs clang (apt-get install clang-19); docs: README.md in this folder.
"""

from .compiler import CompileError, NoClang, find_clang
from .result import ERROR, SPECIFICATION, Report, Result, SimulationError, Traffic
from .simulate import Simulated, simulate, simulate_recorded, simulated
from .syntax import check_syntax

__all__ = [
    "ERROR",
    "SPECIFICATION",
    "CompileError",
    "NoClang",
    "Report",
    "Result",
    "SimulationError",
    "Simulated",
    "Traffic",
    "check_syntax",
    "find_clang",
    "simulate",
    "simulate_recorded",
    "simulated",
]
