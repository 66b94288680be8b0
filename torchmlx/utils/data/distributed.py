"""torch.utils.data.distributed."""

from .sampler import DistributedSampler

__all__ = ["DistributedSampler"]
