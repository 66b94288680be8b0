"""Model ports written on the facade, and loading, generating and decoding with them."""

from .generation import Response, generate, stream_generate
from .loading import load

__all__ = ["Response", "generate", "load", "stream_generate"]
