"""View steps. A view is a chain of them: `forward` reads a view from its base, `scatter` writes it
back, `pull` carries a gradient back (`source` tells the shape and dtype that `forward` read).

A step that only rearranges (`Reshape`, `Permute`, `Bits`) ignores `base` in `scatter`, so a write
through a chain keeps a single reference to the buffer and MLX may update it in place.
"""

from __future__ import annotations

import math

import mlx.core as mx


class Reshape:
    """The same elements as another shape, in row-major order."""

    __slots__ = ("before", "after")

    def __init__(self, before, after):
        self.before, self.after = before, after

    def forward(self, x: mx.array) -> mx.array:
        return mx.reshape(x, self.after)

    def scatter(self, base: mx.array, new: mx.array) -> mx.array:
        return mx.reshape(new, self.before)

    def pull(self, source, g: mx.array) -> mx.array:
        return mx.reshape(g, self.before)


class Permute:
    __slots__ = ("order", "inverse")

    def __init__(self, order):
        self.order = order
        self.inverse = tuple(sorted(range(len(order)), key=order.__getitem__))

    def forward(self, x):
        return mx.transpose(x, self.order)

    def scatter(self, base, new):
        return mx.transpose(new, self.inverse)

    def pull(self, source, g):
        return mx.transpose(g, self.inverse)


class Index:
    """Basic indexing: ints and slices with positive steps, one per dimension."""

    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index

    def forward(self, x):
        return x[self.index]

    def scatter(self, base, new):
        result = base[...]  # a second handle on the same lazy array: the assignment rebinds only it
        result[self.index] = new
        return result

    def pull(self, source, g):
        return self.scatter(mx.zeros(source.shape, g.dtype), g)


class Expand:
    """Repeated dimensions; a write takes the first of the repeated elements."""

    __slots__ = ("before", "after")

    def __init__(self, before, after):
        self.before, self.after = before, after

    @property
    def repeats(self) -> bool:
        return math.prod(self.before) != math.prod(self.after)

    def forward(self, x):
        return mx.broadcast_to(x, self.after)

    def scatter(self, base, new):
        lead = (0,) * (len(self.after) - len(self.before))
        return new[(*lead, *(slice(0, n) for n in self.before))]

    def pull(self, source, g):
        if g.size == 0:
            return mx.zeros(self.before, g.dtype)
        lead = len(self.after) - len(self.before)
        grown = [d for d, n in enumerate(self.before) if n != self.after[lead + d]]
        axes = (*range(lead), *(lead + d for d in grown))
        return mx.reshape(mx.sum(g, axis=axes), self.before) if axes else g


class Gather:
    """Any other view (diagonal, unfold, as_strided), as a function; written by the positions it
    reads.
    """

    __slots__ = ("function",)

    def __init__(self, function):
        self.function = function

    def forward(self, x):
        return self.function(x)

    def scatter(self, base, new):
        if base.size == 0 or new.size == 0:
            return base
        where = self.function(mx.arange(base.size, dtype=mx.int64).reshape(base.shape))
        flat = mx.reshape(base, (-1,))
        flat[mx.reshape(where, (-1,))] = mx.reshape(new, (-1,))
        return mx.reshape(flat, base.shape)

    def pull(self, source, g):
        flat = mx.zeros((math.prod(source.shape),), g.dtype)
        if g.size and flat.size:
            where = self.function(mx.arange(flat.size, dtype=mx.int64).reshape(source.shape))
            flat = flat.at[mx.reshape(where, (-1,))].add(mx.reshape(g, (-1,)))
        return mx.reshape(flat, source.shape)


class Bits:
    """The same bytes read as another dtype (`view(dtype)`, view_as_real, view_as_complex)."""

    __slots__ = ("before", "after", "shape_before", "shape_after")

    def __init__(self, before, after, shape_before, shape_after):
        self.before, self.after = before, after
        self.shape_before, self.shape_after = shape_before, shape_after

    def forward(self, x):
        return mx.reshape(_bits(x, self.after), self.shape_after)

    def scatter(self, base, new):
        return mx.reshape(_bits(mx.reshape(new, (-1,)), self.before), self.shape_before)

    def pull(self, source, g):
        if {self.before, self.after} != {mx.float32, mx.complex64}:
            raise NotImplementedError("the derivative for 'view(dtype)' is not implemented.")
        return self.scatter(source, g)


def _bits(x: mx.array, dtype: mx.Dtype) -> mx.array:
    """Row-major bytes of x as `dtype`; MLX's `view` wants a last dimension to widen or narrow."""
    return mx.view(mx.reshape(x, (-1,)), dtype)


class Part:
    """The real (0) or imaginary (1) part of a complex tensor."""

    __slots__ = ("which",)

    def __init__(self, which):
        self.which = which

    def forward(self, x):
        return mx.imag(x) if self.which else mx.real(x)

    def scatter(self, base, new):
        parts = [mx.real(base), mx.imag(base)]
        parts[self.which] = new
        pair = mx.stack(parts, axis=-1)
        return mx.reshape(mx.view(pair, base.dtype), base.shape)

    def pull(self, source, g):
        return self.scatter(mx.zeros(source.shape, source.dtype), g)


def read(base: mx.array, steps: tuple) -> mx.array:
    """The view's values."""
    for step in steps:
        base = step.forward(base)
    return base


def write(base: mx.array, steps: tuple, new: mx.array) -> mx.array:
    """The base's values after `new` is written through the view."""
    step, rest = steps[0], steps[1:]
    if not rest:
        return step.scatter(base, new)
    repeats = type(step) is Gather or (type(step) is Expand and step.repeats)
    if repeats and not any(type(s) in (Bits, Part) for s in rest):
        # One element may have several places here, of which `rest` picks one: follow positions.
        return Gather(lambda x: read(x, steps)).scatter(base, new)
    return step.scatter(base, write(step.forward(base), rest, new))
