"""torch.utils.model_zoo, the old name of torch.hub's loader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..hub import load_state_dict_from_url as load_url

__all__ = ["load_url", "tqdm"]


class tqdm:
    """The calls of a progress bar that is not drawn; torchvision takes its bar from here."""

    def __init__(self, iterable: Iterable | None = None, **settings: Any) -> None:
        self._iterable = () if iterable is None else iterable

    def __iter__(self) -> Iterator:
        return iter(self._iterable)

    def update(self, n: float = 1) -> None:
        """n more are done."""

    def __enter__(self) -> tqdm:
        return self

    def __exit__(self, *error: Any) -> None: ...

    def close(self) -> None:
        """All is done."""
