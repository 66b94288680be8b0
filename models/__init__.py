"""Model ports written on the facade, and loading, generating and decoding with them."""

from .batch import batch_generate
from .generation import Response, generate, stream_generate
from .loading import load
from .prompt_cache import PromptCache, load_prompt_cache, save_prompt_cache

__all__ = [
    "PromptCache",
    "Response",
    "batch_generate",
    "generate",
    "load",
    "load_prompt_cache",
    "save_prompt_cache",
    "stream_generate",
]
