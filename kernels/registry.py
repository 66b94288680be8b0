"""The registry as data: what there is, and what would serve it here."""

from typing import Any

from .discovery import get, names
from .dispatch import BACKENDS, obstacle, select
from .kernel import Kernel
from .spec import Case, Chip


def backend(name: str) -> dict[str, str]:
    """Which backend would serve kernel `name` on the current stream, and why.

    {"kernel", "backend", "variant", "why"}; "variant" is "" unless an override fixes it. KeyError
    for an unknown name, OverrideError for an override that cannot be met.
    """
    choice = select(get(name))
    return {
        "kernel": name,
        "backend": choice.backend,
        "variant": choice.variant or "",
        "why": choice.why,
    }


def listing() -> list[dict[str, Any]]:
    """A JSON-ready row per kernel.

    Beside the fields of `backend`: "summary"; "backends", backend -> "" or why it cannot serve
    here; "variants" of the Metal program -> what they are for; "dtypes"; "cases" with "label",
    "why" and the Metal "variants" chosen for them, dtype -> variant.
    """
    return [_row(get(name)) for name in names()]


def _row(kernel: Kernel) -> dict[str, Any]:
    return {
        **backend(kernel.name),
        "summary": (kernel.function.__doc__ or "").partition("\n")[0],
        "backends": {each: obstacle(kernel, each) or "" for each in BACKENDS},
        "variants": dict(kernel.metal.variants) if kernel.metal else {},
        "dtypes": list(kernel.nmse),
        "cases": [
            {"label": case.label, "why": case.why, "variants": chosen(kernel, case)}
            for case in kernel.cases
        ],
    }


def chosen(kernel: Kernel, case: Case) -> dict[str, str]:
    """The Metal variant that the policy picks for `case`, for each dtype; {} without Metal."""
    metal = kernel.metal
    if metal is None:
        return {}
    problems = {t: metal.problem(*case.outline(t), **case.keywords) for t in kernel.nmse}
    return {dtype: metal.choose(problem, Chip.here()) for dtype, problem in problems.items()}
