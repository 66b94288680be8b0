"""Model ports written on the facade, and loading, generating and decoding with them."""

from .batch import batch_generate
from .generation import Response, generate, stream_generate
from .loading import load

__all__ = ["Response", "batch_generate", "generate", "load", "stream_generate"]
