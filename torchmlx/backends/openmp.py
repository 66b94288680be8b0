"""torch.backends.openmp."""


def is_available() -> bool:
    """False: the CPU's kernels are torchmlx's own and MLX's, not OpenMP's."""
    return False
