"""torch.backends.mkl."""


def is_available() -> bool:
    """False: the CPU's kernels are torchmlx's own and MLX's, not MKL's."""
    return False
