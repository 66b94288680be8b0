"""docs/compatibility.md: which names of torch 2.13 are here, and which samples of its op_db differ.

`python -m tests.torchmlx.compatibility` writes it; test_compatibility.py finds it out of date.
"""

from __future__ import annotations

import inspect
import re
import types
import warnings
from pathlib import Path

import torch

import torchmlx

from . import opdb
from .parity import find

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
SAMPLES, BOUND = 3, 2e-5

NAMESPACES = (
    "", "Tensor", "nn", "nn.functional", "nn.init", "nn.utils", "nn.utils.rnn",
    "nn.utils.parametrize", "nn.utils.parametrizations", "func", "autograd.functional",
    "nn.parallel", "nn.attention", "optim.swa_utils", "linalg",
    "fft", "special", "signal.windows", "masked", "autograd", "amp", "optim",
    "optim.lr_scheduler", "utils.data", "distributions", "mps", "accelerator", "testing",
)  # fmt: skip
# Not for users: one backend's functions, internals that lack an underscore, quantised integers.
INTERNAL = re.compile(
    r"(cudnn|miopen|mkldnn|mkl|fbgemm|fake_quant|fused_moving|quantiz|q_|choose_qparams|sym_|"
    r"int_repr|dequantize|is_same_size|is_inference$|parse_|read_vitals|set_vital|vitals|import_ir|"
    r"merge_type|unify_type|init_num|autocast_|clear_autocast|is_vulkan|prepare_multi|.*_jvp$|"
    r"batch_norm_|.*_backward$|norm_except|(lstm|gru|rnn_(tanh|relu))(_cell)?$|kineto|qscheme|"
    r"(is|set|get)_autocast_(cache|ipu|xla|cpu|gpu)|.*_impl|(c?col|c?row|crow)?_?indices|"
    r"is_(ipu|xla|xpu|vulkan)|ipu$|xpu$|mtia$|profiler_allow|DFIter|as_subclass|dtype_abbrs|"
    r"empty_quantized|get_(file_path|device_module)|thread_safe|classproperty|obj$|cpp$|"
    r"(hs|sspadd|ds|sadd|hsp)mm$|is_storage|slice_inverse|const_data_ptr|module_load|"
    r"guaranteed_|argument_valid|runtime_valid|functional_data|non_determ|set_anomaly|"
    r"(can_use|register|restore|activate|current|list)_.*(attention|impl)|enforce_grad|"
    r"(Saved|Lazy|Uninit|NestedIO|DataChunk|Profiler)\w*|values(_copy)?$|compiled_with|is_dist|"
    r"(assert_int|handle|has_torch|boolean)_\w*|CompilationUnit|fork|wait|factory_kwargs)"
)
TYPES = {
    "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "Event", "FloatTensor", "Generator",
    "HalfTensor", "IntTensor", "LongTensor", "OutOfMemoryError", "ShortTensor", "Size", "Stream",
    "Tensor", "autocast", "device", "dtype", "enable_grad", "finfo", "iinfo", "inference_mode",
    "layout", "memory_format", "no_grad", "set_grad_enabled",
}  # fmt: skip
# What a name that is here does not do, or does otherwise.
DIFFERENCES = {
    "as_strided_scatter": "the input's gradient is 0 where it was overwritten, not in torch",
    "compile": "gives back what it is given, uncompiled: `mx.compile` would keep the values of "
    "captured tensors, repeat random numbers and miss writes in place; on a CPU it also starts g++ "
    "for every fused kernel",
    "det": "its slope where it is 0: the cofactors, torch's is 0",
    "linalg.det": "its slope where it is 0: the cofactors, torch's is 0",
    "linalg.eig": "eigenvectors in the phase of NumPy's LAPACK",
    "linalg.eigh": "eigenvectors in the phase of NumPy's LAPACK",
    "func.vmap": "one call a slice: torch's results, not a batched kernel's speed",
    "load": "weights_only=True unless False is asked for; TorchScript files are refused",
    "nn.functional.interpolate": "antialias=True is refused",
    "Tensor.cdouble": "refused: MLX has no complex128",
    "Tensor.to": "complex128 is refused",
    **dict.fromkeys(
        ("special.bessel_j0", "special.bessel_j1", "special.bessel_y0", "special.bessel_y1"),
        "exact in float64, where torch's are off by up to 1e-6 between 5 and 25",
    ),
    "topk": "equal values come in any order, as in torch",
}
HEAD = """\
# Compatibility with torch

Written by `python -m tests.torchmlx.compatibility` from torch {version} and what is here; a test
finds it out of date. A name that is absent raises AttributeError.

Everywhere:

- Results, dtypes, shapes and errors are those of torch's CPU, also where torch on Apple GPUs
  differs.
- complex128 is refused with an error (MLX has complex64 only); float64 exists on the CPU, and its
  exp, sin and sigmoid are as accurate as float32's.
- A dimension holds fewer than 2^31 elements (MLX counts it in 32 bits; more is an error); a tensor
  may hold more.
- No sparse, quantised (torch.qint8) or nested tensors, no TorchScript or ONNX;
  `torch.distributed` is a group of one process.
"""


def public(namespace: str) -> dict[str, object]:
    """The names of one of torch's namespaces that users call."""
    owner = find(torch, namespace) if namespace else torch
    found = {}
    for name in dir(owner):
        if name.startswith("_") or INTERNAL.match(name) or (namespace and name == "Tensor"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = getattr(owner, name)
        home = getattr(value, "__module__", None) or "torch"
        foreign = not home.startswith("torch") or home == "torch._C" and isinstance(value, type)
        internal = not namespace and isinstance(value, type) and name not in TYPES
        if callable(value) and not (foreign or internal or isinstance(value, types.ModuleType)):
            found[name] = value
    return found


def is_here(name: str) -> bool:
    try:
        find(torchmlx, name)
    except AttributeError:
        return False
    return True


def parameters_missing(name: str, theirs) -> list[str]:
    """Parameters of a Python function or class of torch's that ours does not name."""
    try:
        wanted = inspect.signature(theirs).parameters
        own = inspect.signature(find(torchmlx, name)).parameters
    except (TypeError, ValueError):
        return []
    if any(p.kind is p.VAR_KEYWORD for p in own.values()):
        return []
    plain = (p for p in wanted.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    return [p.name for p in plain if p.name not in (*own, "self") and p.name[0] != "_"]


def misses() -> dict[str, str]:
    """OpInfo -> how its first differing sample differs: absent, error, shape, dtype or values."""
    found = {}
    for op in opdb.operations():
        if (kind := opdb.first_miss(op, SAMPLES, BOUND)) is not None:
            found[opdb.key_of(op)] = kind
    return found


def differences(namespace: str, names: dict[str, object]) -> dict[str, str]:
    """What differs of the names that are here."""
    found = {}
    for name, theirs in names.items():
        full = f"{namespace}.{name}" if namespace else name
        notes = [DIFFERENCES[full]] if full in DIFFERENCES else []
        if missing := parameters_missing(full, theirs):
            notes.append("without " + ", ".join(f"`{p}`" for p in missing))
        if notes:
            found[name] = "; ".join(notes)
    return found


def render(listed: dict[str, str]) -> str:
    """The page, given the misses."""
    lines = [HEAD.format(version=torch.__version__.partition("+")[0])]
    lines += ["| namespace | here | of them partly | absent |", "|---|---|---|---|"]
    sections = []
    for namespace in NAMESPACES:
        title = f"torch.{namespace}".rstrip(".")
        names = public(namespace)
        prefix = namespace + "." if namespace else ""
        here = {n: v for n, v in names.items() if is_here(prefix + n)}
        partly = differences(namespace, here)
        absent = [n for n in names if n not in here]
        lines.append(f"| {title} | {len(here)} | {len(partly)} | {len(absent)} |")
        sections += [
            "",
            f"## {title}",
            "",
            "Supported: " + _list(n for n in here if n not in partly),
        ]
        if partly:
            sections += ["", "| partly | what differs |", "|---|---|"]
            sections += [f"| `{n}` | {text} |" for n, text in partly.items()]
        if absent:
            sections += ["", "Absent: " + _list(absent)]
    lines += sections
    lines += [
        "",
        "## Samples of op_db that differ",
        "",
        "| OpInfo | first difference |",
        "|---|---|",
    ]
    lines += [f"| `{key}` | {kind} |" for key, kind in sorted(listed.items())]
    return "\n".join(lines) + "\n"


def _list(names) -> str:
    return ", ".join(f"`{n}`" for n in names) or "none"


def listed_misses() -> dict[str, str]:
    """The misses that the page lists."""
    table = PAGE.read_text().partition("## Samples of op_db that differ")[2]
    return dict(re.findall(r"^\| `([^`]+)` \| (\w+) \|$", table, re.M))


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        PAGE.write_text(render(misses()))
