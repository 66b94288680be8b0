"""torch.backends.cudnn: switches for a library that MLX does not let one choose."""

enabled, benchmark, deterministic, allow_tf32 = True, False, False, True
benchmark_limit = 10


def is_available() -> bool:
    """False: no cuDNN that this could switch."""
    return False


def version() -> None:
    """No cuDNN, no version."""
