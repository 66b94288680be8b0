"""Every C++ kernel in children of fork: `python -m tests.kernels.cpu.forks`.

The parent has used the pool; children and their children compute the same on a new stream, as
MLX's own threads do not survive a fork. Ends with the number of processes that did not.
"""

import multiprocessing
import os
import sys

import mlx.core as mx

from torchmlx.kernels import native
from torchmlx.kernels.dispatch import use

from .test_every_kernel import KERNELS, call, cases, same


def compute():
    """Kernel's name -> its results, and what they are of."""
    with use("cpu"):
        results = {}
        for kernel in KERNELS:
            case = cases(kernel.name)[0]
            results[kernel.name] = call(kernel, case, case.make("float32"))
        mx.eval(list(results.values()))
        return results


def check(wants, depth: int) -> int:
    """Faults here and, so many generations deep, in children."""
    faults = 0
    with mx.stream(mx.new_stream(mx.cpu)):
        for name, got in compute().items():
            try:
                same(wants[name], got, "float32")
            except AssertionError as wrong:
                faults += 1
                print(f"{name}, {depth} generations to go: {wrong}", flush=True)
    return faults + (fork(wants, depth - 1) if depth else 0)


def fork(wants, depth: int) -> int:
    """check() in a child."""
    child = os.fork()
    if child == 0:
        faults = 1
        try:
            faults = check(wants, depth)
        finally:
            os._exit(min(faults, 100))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def end(wants) -> None:
    """check() as a process of multiprocessing."""
    sys.exit(check(wants, 0))


def main() -> int:
    """All kinds of children."""
    module, reason = native.load()
    if module is None:
        raise SystemExit(reason)
    module.set_threads(3)
    wants = compute()
    faults = fork(wants, 1)
    process = multiprocessing.get_context("fork").Process(target=end, args=(wants,))
    process.start()
    process.join(200)
    faults += process.exitcode != 0
    for name, got in compute().items():
        same(wants[name], got, "float32")
    print(f"{len(wants)} kernels, {module.threads()} threads, {faults} faults")
    return faults


if __name__ == "__main__":
    sys.exit(main())
