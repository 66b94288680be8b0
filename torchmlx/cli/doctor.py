"""`torchmlx doctor`: what is installed, what runs where, what is slow and how to mend it."""

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
from pathlib import Path

from .. import machine
from ..kernels import native
from . import kernels, terminal

PACKAGES = (
    *("mlx", "mlx-metal", "mlx-cpu", "mlx-cuda-13", "numpy", "safetensors", "tokenizers"),
    *("huggingface_hub", "jinja2", "gguf", "rich"),
)

# Extra, the modules it brings, what they are for.
OPTIONAL = (
    ("video", ("av", "PIL"), "video files"),
    ("bench", ("torch", "transformers", "diffusers", "mlx_lm"), "benchmarks against them"),
)


def add(commands) -> None:
    """Add the command and its flags to `commands`."""
    parser = commands.add_parser(
        "doctor",
        help="show versions, device and kernels, and how to mend what is slow",
        description="Show versions, the machine, which backend serves which kernel, what is slow\n"
        "here and how to mend it. Exit code 0 when this installation can be used.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Gather and print; an installation that cannot be used has failed before this, at import."""
    report = examine()
    if args.json:
        terminal.print_json(report)
    else:
        _print(report)
    return 0


def examine() -> dict:
    """Everything doctor knows, ready for JSON; sizes are in bytes."""
    device = describe_device()
    return {
        "versions": versions(),
        "machine": {
            "os": platform.platform(),
            "cores": machine.cores(),
            "memory_total": machine.memory_total(),
            "memory_available": machine.memory_available(),
        },
        "device": device,
        "native": describe_native(),
        "kernels": kernels.collect(),
        "cache": str(machine.cache_root()),
        "settings": {k: v for k, v in sorted(os.environ.items()) if k.startswith("TORCHMLX_")},
        "advice": advise(str(device["kind"])),
        "missing_extras": missing_extras(),
    }


def versions() -> dict[str, str]:
    """Package to version, for those that are installed."""
    from . import version

    found = {"torchmlx": version(), "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def describe_device() -> dict[str, str | int]:
    """MLX's default device: `kind` (metal, cuda or cpu), and all that MLX tells about it."""
    import mlx.core as mx

    kind = "metal" if mx.metal.is_available() else "cuda" if mx.cuda.is_available() else "cpu"
    return {"kind": kind, **mx.device_info()}


def describe_native() -> dict:
    """The C++ kernels: instruction sets best first, the one in use and why, AMX, threads."""
    module, reason = native.load()
    if module is None:
        return {"loaded": False, "why_not": reason}
    return {
        "loaded": True,
        "instruction_set": module.instruction_set(),
        "instruction_sets": module.instruction_sets(),
        "forced": bool(os.environ.get("TORCHMLX_CPU_ISA")),
        "amx": _amx(module.instruction_sets()),
        "threads": module.threads(),
    }


def _amx(sets: list[str]) -> str:
    """Whether AMX can be used; the kernels try its instructions before they are used."""
    if "amx" in sets:
        return "it computes what it should"
    if "amx_bf16" in machine.processor_flags():
        return "the system does not grant it, or it computes wrong results; AVX-512 serves"
    return "this processor has none"


def advise(kind: str) -> list[dict[str, str]]:
    """What is slow or missing on a device of this kind, each with what mends it."""
    found = []
    if kind == "cpu":
        found += _slow_products()
        if shutil.which("g++") is None:
            mend = "install g++ (Debian: apt-get install g++), or set MLX_DISABLE_COMPILE=1"
            found.append(
                {"what": "mx.compile on the CPU calls g++, and there is none", "mend": mend}
            )
    return found


def _slow_products() -> list[dict[str, str]]:
    """What is slow without our C++ kernels, or beside a GPU that nobody uses."""
    if Path("/proc/driver/nvidia/version").exists():
        mend = "pip install 'torchmlx[cuda13]'"
        return [{"what": "this machine has an NVIDIA GPU that MLX does not use", "mend": mend}]
    if not (reason := native.obstacle()):
        return []
    # mlx 0.32.4 against torch 2.13, 2 cores with AVX-512, 256x2048 @ 2048x8192:
    # 53 times slower in float32, 77 in bfloat16, 29 in float16.
    slow = f"{reason}, and MLX's reference BLAS takes 30-80 times torch's time for matrix products"
    return [{"what": slow, "mend": native.MEND}]


def missing_extras() -> list[dict[str, str]]:
    """Optional packages that are not installed, by extra."""
    found = []
    for extra, modules, purpose in OPTIONAL:
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if missing:
            what = f"{purpose}: {', '.join(missing)}"
            found.append({"what": what, "mend": f"pip install 'torchmlx[{extra}]'"})
    return found


def _print(report: dict) -> None:
    """The report as text, one block a topic."""
    host, device = report["machine"], report["device"]
    available = host["memory_available"]
    free = "unknown" if available is None else terminal.size(available)
    rows = [
        ("versions", ", ".join(f"{name} {text}" for name, text in report["versions"].items())),
        ("system", f"{host['os']}, {host['cores']} cores"),
        ("memory", f"{terminal.size(host['memory_total'])}, available {free}"),
        ("device", f"{device['kind']}: {device['device_name']} ({device['architecture']})"),
        ("C++", _native_line(report["native"])),
        ("cache", report["cache"]),
        ("settings", " ".join(f"{k}={v}" for k, v in report["settings"].items()) or "none"),
    ]
    for name, text in rows:
        print(f"{name:10}{text}")
    print()
    kernels.print_kernels(report["kernels"])
    for title, key in (("slow here", "advice"), ("not installed", "missing_extras")):
        for item in report[key]:
            print(f"\n{title}: {item['what']}\n  mend: {item['mend']}")


def _native_line(found: dict) -> str:
    if not found["loaded"]:
        return f"not in use: {found['why_not']}"
    why = "forced by TORCHMLX_CPU_ISA" if found["forced"] else "the best here"
    threads = found["threads"]
    return (
        f"{found['instruction_set']}, {why}; "
        f"this machine runs {', '.join(found['instruction_sets'])}; "
        f"AMX: {found['amx']}; {threads} thread{'s' if threads > 1 else ''}"
    )
