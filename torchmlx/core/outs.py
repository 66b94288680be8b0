"""The rules of `out=`, torch's, in its words.

A function with `out=` computes as without it; the result then goes into the tensor given, which is
resized where its shape differs, if the function's rule allows its dtype.
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from . import dtype as dtypes
from . import layout, record
from .dtype import dtype
from .layout import Size
from .overlap import check_apart
from .tensor import Tensor, from_array
from .views import Index, Permute, Reshape


class Rule(NamedTuple):
    """What a function takes as `out=`: fits(result's dtype, out's dtype), and torch's error."""

    fits: Callable[[dtype, dtype], bool]
    message: str = ""  # of {name}, {result}, {out}; {c_result}, {c_out} are the types in C
    least: int | None = None  # out's dtype, from this category on, is the one to compute in
    creates: bool = False  # from nothing, on out's device
    quiet: bool = False  # another shape is no reason for a warning


def _same(result: dtype, out: dtype) -> bool:
    return result is out


def _any(result: dtype, out: dtype) -> bool:
    return True


def _no_bool(result: dtype, out: dtype) -> bool:
    return out is not dtypes.bool_


def _real(result: dtype, out: dtype) -> bool:
    return out is not dtypes.bool_ and not out.is_complex


def _inexact(result: dtype, out: dtype) -> bool:
    return out.category >= dtypes.FLOAT


def _float(result: dtype, out: dtype) -> bool:
    return out.category == dtypes.FLOAT


def _complex(result: dtype, out: dtype) -> bool:
    return out.is_complex


def _mask(result: dtype, out: dtype) -> bool:
    return out in (dtypes.bool_, dtypes.uint8)


_CAST = Rule(dtypes.can_cast, "result type {result} can't be cast to the desired output type {out}")


def _safe(what: str) -> str:
    return (
        f"Expected {what} to be safely castable from {{result}} dtype, but got {what} with dtype "
        "{out}"
    )


RULES: dict[str, Rule] = {}


def _rule(names: str, *rule, **more) -> None:
    for name in names.split():
        RULES[name] = rule[0] if isinstance(rule[0], Rule) else Rule(*rule, **more)


# Measured on torch 2.13's CPU, function by function (2026-12-03).
_rule(
    """acos angle arccos asin arcsin asinh arcsinh atan arctan atanh arctanh cos cosh deg2rad
    digamma erf erfc erfinv exp exp2 expm1 i0 lgamma log log10 log1p log2 logit rad2deg reciprocal
    rsqrt sigmoid sin sinc sinh sqrt square tan tanh acosh arccosh entr erfcx expit gammaln i0e i1
    i1e log_ndtr ndtr ndtri psi add arctan2 atan2 copysign div divide floor_divide fmax fmin fmod
    hypot igamma igammac logaddexp logaddexp2 maximum minimum mul multiply nextafter pow remainder
    sub subtract true_divide xlogy gammainc gammaincc xlog1py zeta bitwise_and bitwise_or
    bitwise_xor gcd lcm bitwise_left_shift bitwise_right_shift lerp addcdiv addcmul threshold
    polygamma std var diff addr outer ger kron ldexp
    airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t chebyshev_polynomial_u
    chebyshev_polynomial_v chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he
    laguerre_polynomial_l legendre_polynomial_p modified_bessel_i0 modified_bessel_i1
    modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1
    shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
    shifted_chebyshev_polynomial_w spherical_bessel_j0""",
    _CAST,
)
_rule(
    """logical_not eq ge greater greater_equal gt le less less_equal logical_and logical_or
    logical_xor lt ne not_equal split_copy""",
    _any,
)
_rule(
    """abs absolute ceil conj_physical floor frac neg negative round sgn sign trunc clamp clip
    clamp_max clamp_min hardshrink softshrink softplus gelu bitwise_not""",
    _same, "Found dtype {out} but expected {result}",
)  # fmt: skip
_rule(
    """argmax argmin aminmax max min norm frobenius_norm renorm sort msort topk softmax log_softmax
    diag tril triu gather take_along_dim index_add index_copy index_reduce scatter scatter_add
    scatter_reduce isin slice_scatter alias_copy detach_copy as_strided_copy diagonal_copy
    expand_copy permute_copy select_copy slice_copy squeeze_copy t_copy transpose_copy unfold_copy
    unsqueeze_copy view_copy view_as_complex_copy view_as_real_copy split_with_sizes_copy
    unbind_copy mm matmul addmm addmv bmm baddbmm cross inverse inv inv_ex det slogdet lu lu_factor
    lu_factor_ex qr svd svdvals linalg.cholesky cholesky_ex eigh eigvalsh matrix_power solve
    solve_ex triangular_solve vector_norm lu_solve lu_unpack ldl_factor ldl_factor_ex ldl_solve
    linear avg_pool2d avg_pool3d""",
    _same, "Expected out tensor to have dtype {c_result}, but got {c_out} instead",
)  # fmt: skip
_rule("isneginf isposinf signbit", _same, "{name} does not support non-boolean outputs.")
_rule(
    "cat concat concatenate stack hstack vstack dstack column_stack row_stack",
    dtypes.can_cast, "torch.cat(): input types can't be cast to the desired output type {out}",
)  # fmt: skip
_rule(
    "cholesky cholesky_inverse cholesky_solve tensorinv tensorsolve",
    dtypes.can_cast, "{name}: " + _safe("result"),
)  # fmt: skip
_rule("cond pinv", dtypes.can_cast, "linalg.{name}: " + _safe("result"))
_rule("householder_product matrix_rank", dtypes.can_cast, "torch.linalg.{name}: " + _safe("result"))
_rule("orgqr", dtypes.can_cast, "torch.linalg.householder_product: " + _safe("result"))
_rule("geqrf", dtypes.can_cast, "torch.{name}: " + _safe("a"))
_rule(
    "eig eigvals",
    dtypes.can_cast, "torch.linalg.{name}: " + _safe("eigenvalues"),
)  # fmt: skip
_rule(
    "fft ifft rfft ihfft fftn ifftn rfftn ihfftn fft2 ifft2 rfft2 ihfft2",
    _complex, "{name} expects a complex output tensor, but got {out}",
)  # fmt: skip
_rule(
    "hfft irfft hfftn irfftn hfft2 irfft2",
    _float, "{name} expects a floating point output tensor, but got {out}",
)  # fmt: skip
_rule(
    "complex polar",
    _same, "Expected object of scalar type {result} but got scalar type {out} for argument 'out'",
)  # fmt: skip
_rule("all any", _mask, "{name} only supports bool tensor for result, got: {out}")
_rule(
    "amax amin",
    _same, "Expected the dtype for input and out to match, but got {result} for input's dtype and "
    "{out} for out's dtype.",
)  # fmt: skip
_rule(
    "logsumexp",
    _inexact, "{name}(): Expected floating point type for result tensor, but got: {out}",
)  # fmt: skip
_rule("cummax cummin logcumsumexp", _same, "expected scalar_type {result} but found {out}")
_rule("solve_triangular logsigmoid", _same, "expected scalar type {result} but found {out}")
_rule(
    "index_select masked_select", _same, "{name}(): self and result must have the same scalar type"
)
_rule(
    "nonzero nonzero_static",
    _same, "{name}: Expected out tensor to have scalar type {result} but got scalar type{out}",
)  # fmt: skip
_rule("dot vdot", _same, "result dtype {out} does not match input dtype {result}")
_rule("linalg.norm", _same, "linalg.norm expected out tensor dtype {result} but got: {out}")
_rule(
    "matrix_norm nuclear_norm",
    _same, "linalg.matrix_norm expected out tensor dtype {result} but got: {out}",
)  # fmt: skip
_rule("nan_to_num", _same, "{name}: dtype of out: {out} should be same as input: {result}")
_rule(
    "float_power",
    _same, "the output given to {name} has dtype {out} but the operation's result requires dtype "
    "{result}",
)  # fmt: skip
_rule("heaviside", _same, "{name} is not yet implemented for tensors with different dtypes.")
_rule("mvlgamma multigammaln", dtypes.can_cast, "mvlgamma: " + _CAST.message)
_rule("where", _same, "Expected out type to be {result} but got {out}")
_rule("median nanmedian kthvalue", _same, "output values must be of same type as input")
_rule("mode", _same, "expected scalar type '{result}' but got '{out}' for values output")
_rule("quantile nanquantile", _same, "quantile() out tensor must be same dtype as the input tensor")
_rule(
    "histc histogram",
    _same, "torch.histogram: input tensor and hist tensor should have the same dtype, but got "
    "input {c_result} and hist {c_out}",
)  # fmt: skip
_rule(
    "take",
    _same, "take(): self and out expected to have the same dtype, but got self.dtype = {result} "
    "and out.dtype = {out}",
)  # fmt: skip
_rule(
    "searchsorted bucketize",
    _same, "torch.searchsorted(): output tensor's dtype is wrong, it can only be Int(int32) or "
    "Long(int64) depending on whether out_int32 flag is True, but we got output tensor's dtype "
    "{out}",
)  # fmt: skip
_rule(
    "narrow_copy",
    _same, "Expected self.dtype() == output.dtype() to be true, but got false.", quiet=True,
)  # fmt: skip
_rule(
    "mv",
    _same, "addmv input tensors must have the same dtype, but got {out}, {result}, and {result}",
)  # fmt: skip
_rule(
    "addbmm", _same, "self and mat2 must have the same dtype, but got {out} and {result}",
    quiet=True,
)  # fmt: skip
_rule(
    "inner tensordot",
    _same, "tensordot: Expected the output tensor to have dtype {result}, but got an output tensor "
    "with dtype {out}",
)  # fmt: skip
_rule(
    "multi_dot chain_matmul",
    _same, "multi_dot(): expected out tensor to have dtype {c_result} but got {c_out}",
)  # fmt: skip
_rule("vecdot", _same, "linalg.vecdot: Expected out of dtype{result} but found {out}")
_rule(
    "ormqr",
    _same, "torch.ormqr: Expected input and result to have the same dtype, but input has "
    "dtype{result} and result has dtype {out}",
)  # fmt: skip
_rule("frexp", _same, "torch.frexp() expects mantissa to have dtype {c_result} but got {c_out}")
_rule("multinomial", _same, "multinomial expects Long tensor out, got: {out}")
# These compute in out's dtype.
_rule("sum prod", _any, least=dtypes.BOOL)
_rule(
    "cumsum cumprod", _no_bool, "\"{name}_out_cpu\" not implemented for '{out}'",
    least=dtypes.INTEGER,
)  # fmt: skip
_rule("mean", *_CAST[:2], least=dtypes.FLOAT)
_rule("nansum nanmean", _float, "\"nansum_cpu\" not implemented for '{out}'", least=dtypes.FLOAT)
_new = {"least": dtypes.BOOL, "creates": True, "quiet": True}
_rule("zeros ones empty full eye", _any, **_new)
_rule("linspace logspace", _no_bool, "\"{name}_cpu\" not implemented for '{out}'", **_new)
_rule("arange range", _real, "\"{name}_cpu\" not implemented for '{out}'", **_new)
_rule("randperm", _real, "\"randperm\" not implemented for '{out}'", **_new)
_rule("fftfreq rfftfreq", _float, "{name} requires a floating point or complex dtype", **_new)

_C_NAMES = {
    "float32": "float", "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16",
    "complex64": "c10::complex<float>", "int64": "long int", "int32": "int", "int16": "short int",
    "int8": "signed char", "uint8": "unsigned char",
}  # fmt: skip
# Where torch gathers its results apart, and copies them into whatever out= is.
_APART = """ndtr threshold mvlgamma multigammaln softmax log_softmax tril triu slice_scatter
    alias_copy detach_copy inverse inv pinv cholesky linalg.cholesky cholesky_inverse cholesky_solve
    matrix_power solve solve_triangular householder_product orgqr ormqr lu_solve ldl_solve fft ifft
    fft2 ifft2 fftn ifftn logsigmoid sum prod mean nansum nanmean std var amax amin all any argmax
    argmin norm vector_norm logsumexp mm matmul mv bmm dot vdot inner diff median nanmedian quantile
    nanquantile cummax cummin"""
_APART = frozenset(_APART.split())
# Where torch writes a result part by part: it may not be an input at all, but for what an index_add
# starts from.
_IN_PARTS = frozenset(
    ("cross", "gather", "index_select", "take", "cat", "concat", "concatenate", "stack")
)
_ONTO_FIRST = frozenset(
    ("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_reduce")
)
_OUT = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
_REST = inspect.Parameter.VAR_KEYWORD
_NOTHING = frozenset(("split_copy", "split_with_sizes_copy", "unbind_copy"))


def rule_of(key: str) -> Rule | None:
    """The rule of a function by its key in the op table, None if it takes no `out=`."""
    return RULES.get(key) or RULES.get(key.rpartition(".")[2])


def takes_out(key: str, function: Callable) -> Callable:
    """A function on Tensors with torch's `out=`."""
    if rule_of(key) is None:
        return function

    @functools.wraps(function)
    def called(*args, out=None, **kwargs):
        if out is None:
            return function(*args, **kwargs)
        return into(out, key, function, args, kwargs)

    own = inspect.signature(function)
    parameters = [*own.parameters.values()]
    rest = [parameters.pop()] if parameters and parameters[-1].kind is _REST else []
    called.__signature__ = own.replace(parameters=[*parameters, _OUT, *rest])  # type: ignore[attr-defined]
    return called


def into(out, key: str, function: Callable, args, kwargs) -> Any:
    """function(*args, **kwargs), written into `out`: a tensor, or a sequence of them."""
    name, rule = key.rpartition(".")[2], rule_of(key)
    if rule is None:
        raise TypeError(f"{name}() got an unexpected keyword argument 'out'")
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    if not all(isinstance(o, Tensor) for o in outs):
        raise TypeError(f"{name}(): argument 'out' must be Tensor, not {type(out).__name__}")
    grad = rule.creates and kwargs.pop("requires_grad", False)
    result = function(*args, **_computing(rule, name, outs[0], kwargs))
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    if (out is outs[0]) == isinstance(result, (tuple, list)):
        wanted = "Tensor" if result is results[0] else "tuple of Tensors"
        raise TypeError(f"{name}(): argument 'out' must be {wanted}, not {type(out).__name__}")
    if len(outs) != len(results):
        raise TypeError(f"expected tuple of {len(results)} elements but got {len(outs)}")
    for o, r in zip(outs, results, strict=True):
        _store(o, r, key, rule, (args, kwargs))
        rule = rule if rule.fits in (dtypes.can_cast, _any) else RULES["sort"]
    if out is outs[0]:
        return outs[0].requires_grad_() if grad else out
    if name in _NOTHING:
        return None
    return getattr(result, "_make", tuple)(outs)


def _computing(rule: Rule, name: str, out: Tensor, kwargs: dict) -> dict:
    """The arguments, with out's dtype and device where the function computes in them."""
    given = kwargs.get("dtype")
    if rule.creates:
        if given is not None and given is not out.dtype:
            raise RuntimeError(
                f"dtype {given.torch_name} does not match dtype of out parameter "
                f"({out.dtype.torch_name})"
            )
        if not rule.fits(out.dtype, out.dtype):
            raise _refusal(rule, name, out.dtype, out.dtype)
        return kwargs | {"dtype": out.dtype, "device": out.device}
    if rule.least is not None and given is None and out.dtype.category >= rule.least:
        return kwargs | {"dtype": out.dtype}
    return kwargs


def _refusal(rule: Rule, name: str, result: dtype, out: dtype) -> Exception:
    message = rule.message.format(
        name=name, result=result.torch_name, out=out.torch_name,
        c_result=_C_NAMES.get(result.name, result.name), c_out=_C_NAMES.get(out.name, out.name),
    )  # fmt: skip
    if message.startswith('"'):
        return NotImplementedError(message)
    return (TypeError if message.startswith("torch.cat") else RuntimeError)(message)


def _store(out: Tensor, result: Tensor, key: str, rule: Rule, given) -> None:
    name = key.rpartition(".")[2]
    if record.needed((result, out)):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, "
            "but one of the arguments requires grad."
        )
    if not rule.fits(result.dtype, out.dtype):
        raise _refusal(rule, name, result.dtype, out.dtype)
    if out.shape != result.shape:
        if out.numel() and not rule.quiet:
            warnings.warn(
                "An output with one or more elements was resized since it had shape "
                f"{list(out.shape)}, which does not match the required output shape "
                f"{list(result.shape)}. This behavior is deprecated, and in a future PyTorch "
                "release outputs will not be resized unless they have zero elements. You can "
                "explicitly reuse an out tensor t by resizing it, inplace, to zero elements with "
                "t.resize_(0).",
                stacklevel=4,
            )
        resize(out, tuple(result.shape))
    if key not in _APART and name not in _APART:
        inputs = tensors_in(*given)
        first = name in _ONTO_FIRST
        check_apart(out, inputs[:first])
        check_apart(out, inputs[first:], first or name in _IN_PARTS)
    if name != "empty":
        out._write(result._read())


def tensors_in(args: Sequence, kwargs: dict) -> list[Tensor]:
    """The tensors among arguments, those in sequences too."""
    found = []
    for a in (*args, *kwargs.values()):
        if isinstance(a, Tensor):
            found.append(a)
        elif type(a) in (tuple, list):
            found += [t for t in a if isinstance(t, Tensor)]
    return found


def resize(x: Tensor, shape: tuple[int, ...]) -> None:
    """Make x a tensor of this shape, row-major from where it begins in its storage.

    A storage that is too small gives way to a larger one of x's own, new elements being zero.
    """
    cell, count, start = x._cell, math.prod(shape), x._offset
    base, order = cell.array, tuple(range(cell.array.ndim))
    if (strides := cell.strides) is not None:
        order = tuple(sorted(order, key=lambda d: -strides[d]))
    dense = layout.is_dense(base.shape, cell.strides) and base.dtype == x.dtype.mx
    if dense and start + count <= base.size:
        turn = () if cell.strides is None else (Permute(order),)
        turned = tuple(base.shape[d] for d in order)
        flat = (Reshape(turned, (base.size,)), Index((slice(start, start + count),)))
        x._steps = (*turn, *flat, Reshape((count,), shape))
        x._shape, x._strides, x._cached = Size(shape), None, None
        return
    old = mx.reshape(mx.transpose(base, order), (-1,))[start:] if dense else x._read().reshape(-1)
    more = max(count - old.size, 0)
    grown = mx.concatenate([old[:count], mx.zeros((more,), old.dtype)])
    x._adopt(from_array(mx.reshape(grown, shape), x.device, x.dtype))
