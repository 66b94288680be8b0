"""torch.version: what this torch was built for."""

__version__ = "2.15.0+mlx"
cuda: str | None = None
hip: str | None = None
xpu: str | None = None
debug = False
