"""torch.utils.model_zoo, the old name of torch.hub's loader."""

from __future__ import annotations

from ..hub import load_state_dict_from_url as load_url

try:
    from tqdm import tqdm  # pyright: ignore[reportMissingModuleSource]
except ImportError:  # torch has a plain one; without it a loop shows no bar

    def tqdm(iterable=None, *args, **kwargs):  # type: ignore[no-redef]
        """`iterable` itself."""
        return iterable


__all__ = ["load_url", "tqdm"]
