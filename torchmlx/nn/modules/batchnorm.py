"""Batch normalisation, and what it shares with instance normalisation."""

from __future__ import annotations

from ...core import dtype as dtypes
from ...core.op import TABLE
from .. import functional as F
from .. import init
from .linear import empty
from .module import Module


class Normalisation(Module):
    """Weight and bias [C], running mean and variance, and a count of the batches seen."""

    _version = 2
    __constants__ = ["track_running_stats", "momentum", "eps", "num_features", "affine"]

    def __init__(
        self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True,
        device=None, dtype=None, *, bias=True,
    ):  # fmt: skip
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            own = empty(num_features, device=device, dtype=dtype) if wanted else None
            self.register_parameter(name, own)
        zeros, ones = TABLE["zeros"].call, TABLE["ones"].call
        tracked = track_running_stats
        place = {"device": device, "dtype": dtype}
        self.register_buffer("running_mean", zeros(num_features, **place) if tracked else None)
        self.register_buffer("running_var", ones(num_features, **place) if tracked else None)
        count = zeros((), dtype=dtypes.int64, device=device) if tracked else None
        self.register_buffer("num_batches_tracked", count)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Mean 0, variance 1, no batches seen."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Weight one, bias zero, and fresh statistics."""
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def extra_repr(self):
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(Normalisation):
    dims: tuple[int, ...]

    def _check_input_dim(self, input) -> None:
        if input.ndim not in self.dims:
            wanted = " or ".join(f"{d}D" for d in self.dims)
            raise ValueError(f"expected {wanted} input (got {input.ndim}D input)")

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest, **named):
        # Checkpoints older than version 2 have no count of batches.
        version, key = local_metadata.get("version"), prefix + "num_batches_tracked"
        old = (version is None or version < 2) and self.track_running_stats
        if old and key not in state_dict:
            count = self.num_batches_tracked
            fresh = TABLE["zeros"].call((), dtype=dtypes.int64)
            state_dict[key] = fresh if count is None or count.is_meta else count
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest, **named)

    def forward(self, input):
        self._check_input_dim(input)
        factor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # a cumulative average
                factor = 1.0 / float(self.num_batches_tracked)
        own = self.running_mean is not None or self.running_var is not None
        use_running = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            self.running_mean if use_running else None,
            self.running_var if use_running else None,
            self.weight,
            self.bias,
            self.training or not own,
            factor,
            self.eps,
        )


class BatchNorm1d(_BatchNorm):
    """Channels of [N, C] or [N, C, L] normalised over the batch. torch.nn.BatchNorm1d."""

    dims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Channels of [N, C, H, W] normalised over the batch. torch.nn.BatchNorm2d."""

    dims = (4,)


class BatchNorm3d(_BatchNorm):
    """Channels of [N, C, D, H, W] normalised over the batch. torch.nn.BatchNorm3d."""

    dims = (5,)


class SyncBatchNorm(_BatchNorm):
    """Channels of [N, C, ...] normalised over the batch of all processes: of the one there is.

    torch.nn.SyncBatchNorm.
    """

    def __init__(
        self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True,
        process_group=None, device=None, dtype=None,
    ):  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.process_group = process_group

    def _check_input_dim(self, input) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2D input (got {input.ndim}D input)")

    @classmethod
    def convert_sync_batchnorm(cls, module, process_group=None):
        """`module` with every batch norm in it as one of this class, of the same tensors."""
        converted = module
        if isinstance(module, _BatchNorm):
            converted = cls(
                module.num_features, module.eps, module.momentum, module.affine,
                module.track_running_stats, process_group,
            )  # fmt: skip
            converted._parameters |= module._parameters
            converted._buffers |= module._buffers
            converted.training = module.training
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return converted
