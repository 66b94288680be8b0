"""torch.onnx, which exports nothing here: scripts that import it for an optional export run."""

from __future__ import annotations

from typing import Any, NoReturn


def export(*args: Any, **kwargs: Any) -> NoReturn:
    """ONNX files are not written: export with torch, from a checkpoint saved here."""
    raise NotImplementedError(
        "torch.onnx.export: torchmlx writes no ONNX; torch.save the model and export it with torch"
    )


def is_in_onnx_export() -> bool:
    """False: nothing is ever exported."""
    return False


def register_custom_op_symbolic(symbolic_name: str, symbolic_fn: Any, opset_version: int) -> None:
    """Accepted: how an operator would be exported is never asked."""
