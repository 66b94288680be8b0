"""Parameters as one vector. torch.nn.utils.convert_parameters."""

from __future__ import annotations

from ...core.op import TABLE
from ...core.tensor import Tensor

__all__ = ["parameters_to_vector", "vector_to_parameters"]


def parameters_to_vector(parameters) -> Tensor:
    """All parameters joined as one vector."""
    return TABLE["cat"].call([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters) -> None:
    """The opposite of `parameters_to_vector`: each parameter gets its part of the vector."""
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected torch.Tensor, but got: {type(vec).__name__}")
    start = 0
    for p in parameters:
        size = p.numel()
        p.data = vec[start : start + size].view_as(p).data  # type: ignore[index]
        start += size
