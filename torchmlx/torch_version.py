"""torch.torch_version: a version that compares as one, with text and with tuples."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["TorchVersion"]


class TorchVersion(str):
    """torch.__version__: "2.15.0" >= "2.4" and >= (2, 4). torch.torch_version.TorchVersion.

    Compared as text with what is no version.
    """

    __slots__ = ()
    __hash__ = str.__hash__

    def _compared(self, other: Any, by: Callable[[Any, Any], bool]) -> bool:
        from packaging.version import InvalidVersion, Version  # not needed for an import of torch

        text = isinstance(other, str) or not isinstance(other, Iterable)
        try:
            return by(Version(self), Version(str(other) if text else ".".join(map(str, other))))
        except InvalidVersion:
            return by(str(self), other)

    def __lt__(self, other: Any) -> bool:
        return self._compared(other, operator.lt)

    def __le__(self, other: Any) -> bool:
        return self._compared(other, operator.le)

    def __gt__(self, other: Any) -> bool:
        return self._compared(other, operator.gt)

    def __ge__(self, other: Any) -> bool:
        return self._compared(other, operator.ge)

    def __eq__(self, other: Any) -> bool:
        return self._compared(other, operator.eq)

    def __ne__(self, other: Any) -> bool:
        return not self == other
