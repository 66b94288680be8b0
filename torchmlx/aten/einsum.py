"""torch.einsum: subscripts are parsed into labels, operands contracted from the left by batched
matmul.
"""

from __future__ import annotations

import math
import string

from ..core.op import composite

_LETTERS = string.ascii_uppercase + string.ascii_lowercase


@composite(at=("torch",))
def einsum(equation, *operands):
    """Sums of products over named dimensions: einsum("bij,bjk->bik", a, b), or lists of labels.

    torch.einsum.
    """
    if not isinstance(equation, str):
        equation, operands = _from_sublists([equation, *operands])
    elif len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = operands[0]
    inputs, output = _parse(equation, operands)
    sizes = _sizes(inputs, operands)
    tensors = [_diagonals(x, labels) for x, labels in zip(operands, inputs, strict=True)]
    result, labels = tensors[0]
    for i, (other, other_labels) in enumerate(tensors[1:], 2):
        later = {label for _, names in tensors[i:] for label in names}
        result, labels = _contract(result, labels, other, other_labels, {*output, *later})
    gone = [i for i, label in enumerate(labels) if label not in output]
    if gone:
        result = result.sum(gone)
        labels = [label for label in labels if label in output]
    # A label that only broadcast (size 1) operands carried keeps its full size.
    if not output:
        return result
    result = result.permute(*(labels.index(label) for label in output))
    return result.expand([sizes[label] for label in output])


def _from_sublists(arguments: list):
    """einsum(a, [0, 1], b, [1, 2], [0, 2]) as an equation and operands."""
    terms, operands = [], []
    while len(arguments) >= 2:
        operands.append(arguments.pop(0))
        terms.append(_letters(arguments.pop(0)))
    equation = ",".join(terms)
    return (equation + "->" + _letters(arguments[0]) if arguments else equation), operands


def _letters(labels) -> str:
    return "".join("..." if label is Ellipsis else _LETTERS[label] for label in labels)


def _parse(equation: str, operands):
    """Labels of each operand and of the output; an ellipsis's dimensions are negative numbers."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        word = "more" if len(terms) < len(operands) else "fewer"
        raise RuntimeError(
            f"einsum(): {word} operands were provided than specified in the equation"
        )
    widest = 0
    for term, x in zip(terms, operands, strict=True):
        named = len(term.replace("...", ""))
        if "..." in term:
            widest = max(widest, x.ndim - named)
        if ("..." in term and x.ndim < named) or ("..." not in term and x.ndim != named):
            raise RuntimeError(
                "einsum(): the number of subscripts in the equation "
                f"({named}) {'is more than' if '...' in term else 'does not match'} the number of "
                f"dimensions ({x.ndim}) for operand {terms.index(term)}"
                + (" and no ellipsis was given" if "..." not in term else "")
            )
    inputs = [
        _labels(term, x.ndim - len(term.replace("...", "")))
        for term, x in zip(terms, operands, strict=True)
    ]
    if arrow:
        return inputs, _checked_output(_labels(right, widest), inputs)
    every = [label for labels in inputs for label in labels if isinstance(label, str)]
    once = sorted({label for label in every if every.count(label) == 1}, key=_LETTERS.index)
    return inputs, [*range(-widest, 0), *once]


def _labels(term: str, dims: int) -> list:
    before, dots, after = term.partition("...")
    for letter in before + after:
        if letter not in _LETTERS:
            raise RuntimeError(
                f"einsum(): invalid subscript given: {letter}, subscripts must be in [a-zA-Z]"
            )
    return [*before, *(range(-dims, 0) if dots else ()), *after]


def _checked_output(output: list, inputs: list) -> list:
    for label in output:
        if output.count(label) > 1:
            raise RuntimeError(
                f"einsum(): output subscript {label} appears more than once in the output"
            )
        if isinstance(label, str) and not any(label in labels for labels in inputs):
            raise RuntimeError(
                f"einsum(): output subscript {label} does not appear in the equation for any "
                "input operand"
            )
    return output


def _sizes(inputs, operands) -> dict:
    sizes: dict = {}
    for labels, x in zip(inputs, operands, strict=True):
        for label, n in zip(labels, x.shape, strict=True):
            known = sizes.get(label, 1)
            if n != 1 and known not in (1, n):
                raise RuntimeError(
                    f"einsum(): subscript {label} has size {n} for operand which does not "
                    "broadcast with "
                    f"previously seen size {known}"
                )
            sizes[label] = n if n != 1 else known
    return sizes


def _diagonals(x, labels: list):
    """Repeated labels of one operand become its diagonal."""
    labels = list(labels)
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            x = x.diagonal(0, first, second)
            labels = [n for i, n in enumerate(labels) if i not in (first, second)] + [label]
    return x, labels


def _contract(a, la: list, b, lb: list, needed: set):
    """Two operands as one batched product over the labels that nobody needs any more."""
    a, la = _drop_ones(a, la, b, lb)
    b, lb = _drop_ones(b, lb, a, la)
    a, la = _sum_out(a, la, lb, needed)
    b, lb = _sum_out(b, lb, la, needed)
    batch = [n for n in la if n in lb and n in needed]
    inner = [n for n in la if n in lb and n not in needed]
    rows, columns = [n for n in la if n not in lb], [n for n in lb if n not in la]
    size = {**dict(zip(la, a.shape, strict=True)), **dict(zip(lb, b.shape, strict=True))}
    labels = batch + rows + columns
    shape = [size[n] for n in labels]

    def matrix(x, own, *groups):
        order = [own.index(n) for group in groups for n in group]
        x = x.permute(*order) if order else x
        return x.reshape([math.prod(size[n] for n in group) for group in groups])

    if not inner:
        left = a.permute(*(la.index(n) for n in batch + rows)) if la else a
        right = b.permute(*(lb.index(n) for n in batch + columns)) if lb else b
        left = left.reshape([size[n] for n in batch + rows] + [1] * len(columns))
        spread = [size[n] for n in batch] + [1] * len(rows) + [size[n] for n in columns]
        return left * right.reshape(spread), labels
    result = matrix(a, la, batch, rows, inner) @ matrix(b, lb, batch, inner, columns)
    return result.reshape(shape), labels


def _drop_ones(x, labels: list, other, other_labels: list):
    """Without dimensions of size 1 that the other operand has in full: they broadcast."""
    for i in range(len(labels) - 1, -1, -1):
        label = labels[i]
        if (
            x.shape[i] == 1
            and label in other_labels
            and other.shape[other_labels.index(label)] != 1
        ):
            x, labels = x.squeeze(i), labels[:i] + labels[i + 1 :]
    return x, labels


def _sum_out(x, labels: list, others: list, needed: set):
    gone = [i for i, n in enumerate(labels) if n not in others and n not in needed]
    return (
        (x.sum(gone), [n for i, n in enumerate(labels) if i not in gone]) if gone else (x, labels)
    )
