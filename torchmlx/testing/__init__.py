"""torch.testing: comparison with torch's tolerances and messages, and tensors to test with."""

from ._comparison import assert_close
from ._creation import make_tensor

__all__ = ["assert_close", "make_tensor"]
