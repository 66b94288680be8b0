"""torch.linalg: filled from the op table (torchmlx/aten/linalg.py, norms.py)."""

__all__ = ["LinAlgError"]


class LinAlgError(RuntimeError):
    """A matrix is singular, or a factorisation does not exist. torch.linalg.LinAlgError."""
