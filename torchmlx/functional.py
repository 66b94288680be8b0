"""torch.functional: functions of torch's namespace under an older address."""

import torchmlx as _torch

_NAMES = [
    "atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "broadcast_shapes",
    "broadcast_tensors", "cartesian_prod", "cdist", "chain_matmul", "einsum", "istft", "lu",
    "meshgrid", "norm", "pca_lowrank", "split", "stft", "svd_lowrank", "tensordot", "unique",
    "unique_consecutive", "unravel_index",
]  # fmt: skip


def __getattr__(name: str):
    if name in _NAMES:
        return getattr(_torch, name)
    raise AttributeError(f"module 'torch.functional' has no attribute {name!r}")


def __dir__() -> list[str]:
    return _NAMES
