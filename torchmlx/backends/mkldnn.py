"""torch.backends.mkldnn."""

enabled = False


def is_available() -> bool:
    """False: the CPU's kernels are torchmlx's own and MLX's, not oneDNN's."""
    return False
