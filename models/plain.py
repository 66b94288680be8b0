"""Which modules are just what their class says, so that one kernel may do the work of several."""

import torchmlx as torch
from torchmlx import Tensor, nn


def plain(x: Tensor, *modules: nn.Module, kinds: tuple[type, ...] = (nn.Linear,)) -> bool:
    """Whether modules of these `kinds`, with weights of x's dtype, may be left out of a call on x.

    Not where they have hooks, where gradients are recorded or under autocast.
    """
    if torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type):
        return False
    return all(
        type(m) in kinds
        and m.weight.dtype == x.dtype
        and not (m._forward_hooks or m._forward_pre_hooks)
        for m in modules
    )
