"""Numbers repeated to tuples, under the names that torch code imports."""

from .conv import sizes


def _ntuple(n: int):
    def repeat(value):
        return sizes(value, n)

    return repeat


_single, _pair, _triple, _quadruple = map(_ntuple, (1, 2, 3, 4))
