"""Parameters given as probabilities or as logits, the other computed when asked for."""

from __future__ import annotations

from typing import Any

from ..core.tensor import Tensor
from .utils import lazy_property, logits_to_probs, probs_to_logits


def check_one(probs: Any, logits: Any) -> None:
    """ValueError unless exactly one is given."""
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")


class Odds:
    """`probs` or `logits` of a yes-or-no event; the subclass sets one of them, and `_param`."""

    _param: Tensor

    @lazy_property
    def logits(self) -> Tensor:
        """Log odds."""
        return probs_to_logits(self.probs, is_binary=True)

    @lazy_property
    def probs(self) -> Tensor:
        """Probabilities."""
        return logits_to_probs(self.logits, is_binary=True)

    @property
    def param_shape(self) -> Any:
        """The parameter's shape."""
        return self._param.size()

    def _set(self, probs: Tensor | None, logits: Tensor | None) -> None:
        if probs is not None:
            self.probs = self._param = probs
        elif logits is not None:
            self.logits = self._param = logits
