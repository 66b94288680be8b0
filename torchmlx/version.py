"""torch.version: what this torch was built for."""

from .torch_version import TorchVersion as _TorchVersion

__version__ = _TorchVersion("2.15.0+mlx")
cuda: str | None = None
hip: str | None = None
xpu: str | None = None
debug = False
