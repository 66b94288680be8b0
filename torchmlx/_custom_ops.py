"""torch._custom_ops: the older place of torch.library, which libraries import and do not use."""

from .library import custom_op as custom_op
