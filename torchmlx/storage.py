"""torch.storage: the bytes of a tensor or of a file."""

from .core.storage import UntypedStorage as UntypedStorage
