"""Parameters given as probabilities or as logits, the other computed when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.tensor import Tensor
from .utils import broadcast_all, lazy_property, logits_to_probs, probs_to_logits

if TYPE_CHECKING:
    from .categorical import Categorical


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

    def _take(self, probs: Any, logits: Any, *beside: Any) -> tuple[Tensor, ...]:
        """Keep the one that is given, of one shape with `beside`, which are returned."""
        check_one(probs, logits)
        given, *others = broadcast_all(logits if probs is None else probs, *beside)
        if probs is not None:
            self.probs = self._param = given
        else:
            self.logits = self._param = given
        return tuple(others)


class Choices:
    """`probs` and `logits` of one of n outcomes, kept in a Categorical."""

    _categorical: Categorical

    @property
    def probs(self) -> Tensor:
        """Normalised probabilities."""
        return self._categorical.probs

    @property
    def logits(self) -> Tensor:
        """Normalised log probabilities."""
        return self._categorical.logits

    @property
    def param_shape(self) -> Any:
        """The parameter's shape."""
        return self._categorical.param_shape
