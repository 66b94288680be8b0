"""`out=` of every function of torch's that takes it, against torch 2.13."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest

import torchmlx

from .parity import data, find

torch = pytest.importorskip("torch", reason="torch 2.13 CPU is the oracle of parity tests")

pytestmark = pytest.mark.filterwarnings("ignore")
LIBRARIES = (torch, torchmlx)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    return data(*shape, seed=seed, low=0.1, high=0.9)


X, Y, V = positive(3, 4), positive(3, 4, seed=1), positive(4, seed=2)
Z, P = positive(4, 3, seed=3), positive(3, 3, seed=4)
M = positive(3, 3, seed=5) + 2 * np.eye(3, dtype=np.float32)
S = M @ M.T
W = np.linalg.cholesky(S).astype(np.float32)
B, C = X > 0.5, (X + 1j * Y).astype(np.complex64)
K, J = np.arange(12).reshape(3, 4) % 9, np.arange(12).reshape(3, 4) % 4 + 1
AT = np.array([[0, 1], [1, 2], [3, 0]])
ROWS, PIVOTS = np.array([0, 2]), np.array([1, 2, 3], np.int32)
BATCH, HCTAB = positive(2, 3, 4, seed=6), positive(2, 4, 3, seed=7)
PLANE = positive(1, 1, 4, 4, seed=8)

CALLS: dict[str, tuple[tuple, dict]] = {}


def _calls(names: str, *args, **kwargs) -> None:
    for name in names.split():
        CALLS[name] = (args, kwargs)


_calls(
    """abs absolute acos angle arccos asin arcsin asinh arcsinh atan arctan atanh arctanh ceil
    conj_physical cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor frac i0 isneginf
    isposinf lgamma log log10 log1p log2 logical_not logit nan_to_num neg negative rad2deg
    reciprocal round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc
    hardshrink nn.functional.gelu nn.functional.softplus nn.functional.softshrink
    special.digamma special.entr special.erf special.erfc special.erfcx special.erfinv
    special.bessel_j0
    special.exp2 special.expit special.expm1 special.gammaln special.i0 special.i0e special.i1
    special.i1e special.log1p special.log_ndtr special.logit special.ndtr special.ndtri special.psi
    special.round special.sinc sort msort alias_copy detach_copy t_copy diagonal_copy nonzero
    tril triu nuclear_norm fft.rfft fft.rfft2 fft.rfftn fft.ihfft nn.functional.normalize""",
    X,
)
_calls("acosh arccosh", X + 1)
_calls("bitwise_not", K)
_calls(
    """add arctan2 atan2 copysign div divide eq float_power floor_divide fmax fmin fmod ge greater
    greater_equal gt heaviside hypot igamma igammac le less less_equal logaddexp logaddexp2
    logical_and logical_or logical_xor lt maximum minimum mul multiply ne nextafter not_equal pow
    remainder sub subtract true_divide xlogy special.gammainc special.gammaincc special.xlog1py
    special.xlogy complex polar normal linalg.vecdot""",
    X, Y,
)  # fmt: skip
_calls("special.zeta", X + 2, Y)
_calls(
    "bitwise_and bitwise_or bitwise_xor gcd lcm bitwise_left_shift bitwise_right_shift isin", K, J
)
_calls("ldexp", X, J)
_calls("lerp", X, Y, 0.3)
_calls("addcdiv addcmul", X, Y, Y)
_calls("clamp clip", X, 0.3, 0.6)
_calls("clamp_max clamp_min", X, 0.5)
_calls("threshold", X, 0.5, 2.0)
_calls("mvlgamma special.multigammaln", X + 3, 2)
_calls("polygamma special.polygamma", 1, X)
_calls("where", B, X, Y)
_calls(
    """sum prod mean nansum nanmean std var all any amax amin argmax argmin logsumexp
    special.logsumexp max min median nanmedian mode sort softmax log_softmax cumsum cumprod
    logcumsumexp cummax cummin""",
    X, 1,
)  # fmt: skip
_calls("aminmax", X, dim=1)
_calls("kthvalue norm linalg.vector_norm", X, 2, 1)
_calls("frobenius_norm", X, [0, 1])
_calls("renorm", X, 2, 0, 1.0)
_calls("quantile nanquantile", X, 0.5, 1)
_calls("diff", X, 1, 1)
_calls("topk", X, 2)
_calls("histc", X, 4)
_calls("histogram", X.ravel(), 4)
_calls("cat concat concatenate stack hstack vstack dstack column_stack row_stack", [X, Y])
_calls("diag", V)
_calls("gather take_along_dim", X, 1, AT)
CALLS["take_along_dim"] = ((X, AT, 1), {})
_calls("take", X, np.array([0, 5, 2]))
_calls("index_select", X, 1, ROWS)
_calls("masked_select", X, B)
_calls("nonzero_static", X, size=3)
_calls("index_add index_copy", X, 0, ROWS, Y[:2])
_calls("index_reduce", X, 0, ROWS, Y[:2], "prod")
_calls("scatter scatter_add", X, 1, AT, Y)
_calls("scatter_reduce", X, 1, AT, Y, "sum")
_calls("searchsorted", np.sort(V), X)
_calls("bucketize", X, np.sort(V))
_calls("slice_scatter", X, Y[:2], 0, 0, 2)
_calls("as_strided_copy", X, (2, 3), (4, 1))
_calls("expand_copy", V, (3, 4))
_calls("permute_copy", X, (1, 0))
_calls("select_copy", X, 1, 0)
_calls("slice_copy", X, 1, 0, 2)
_calls("squeeze_copy", X[None], 0)
_calls("transpose_copy", X, 0, 1)
_calls("unfold_copy", V, 0, 2, 1)
_calls("unsqueeze_copy", X, 0)
_calls("view_copy", X, (4, 3))
_calls("view_as_complex_copy", positive(3, 2))
_calls("view_as_real_copy", C)
_calls("split_with_sizes_copy", X, [1, 3], 1)
_calls("unbind_copy", X)
_calls("mm matmul linalg.matmul chain_matmul", X, Z)
_calls("addmm", P, X, Z)
_calls("addmv", P[0], X, V)
_calls("mv", X, V)
_calls("addr", X, P[0], V)
_calls("outer ger", P[0], V)
_calls("dot vdot inner", V, Z[:, 0].copy())
_calls("bmm", BATCH, HCTAB)
_calls("baddbmm", positive(2, 3, 3), BATCH, HCTAB)
_calls("addbmm", P, BATCH, HCTAB)
_calls("kron", X, P)
_calls("linalg.cross", M, P)
_calls("tensordot", X, Z, 1)
_calls("linalg.multi_dot", [X, Z])
_calls(
    """inverse linalg.inv linalg.inv_ex linalg.det linalg.slogdet slogdet linalg.eigvals
    linalg.cond linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.matrix_norm linalg.norm
    linalg.matrix_rank linalg.pinv linalg.qr linalg.svd linalg.svdvals geqrf""",
    M,
)
_calls("linalg.cholesky linalg.cholesky_ex linalg.eigh linalg.eigvalsh cholesky", S)
_calls("cholesky_inverse", W)
_calls("cholesky_solve", P, W)
_calls("matrix_power linalg.matrix_power", M, 2)
_calls("linalg.solve linalg.solve_ex", M, P)
_calls("linalg.solve_triangular", W, P, upper=False)
_calls("triangular_solve", P, W.T.copy())
_calls("linalg.tensorinv", positive(2, 3, 6), ind=2)
_calls("linalg.tensorsolve", positive(2, 3, 6), positive(2, 3))
_calls("linalg.householder_product orgqr", M, P[0])
_calls("ormqr", M, P[0], P)
_calls("linalg.lu_solve", M, PIVOTS, P)
_calls("lu_solve", P, M, PIVOTS)
_calls("lu_unpack", M, PIVOTS)
_calls(
    """fft.fft fft.ifft fft.fft2 fft.ifft2 fft.fftn fft.ifftn fft.hfft fft.irfft fft.irfft2
    fft.irfftn""",
    C,
)
_calls("fft.fftfreq fft.rfftfreq", 4)
_calls("zeros ones rand randn", (3, 4))
_calls("full", (3, 4), 2.5)
_calls("eye", 3)
_calls("linspace logspace", 0.0, 1.0, 5)
_calls("arange", 5.0)
_calls("range", 0.0, 4.0)
_calls("randint", 0, 9, (3, 4))
_calls("randperm", 5)
_calls("bernoulli", X)
_calls("multinomial", X, 2)
_calls("frexp", X)
_calls("nn.functional.linear", X, positive(2, 4))
_calls("nn.functional.avg_pool2d", PLANE, 2)

# torch gives the numbers of the memory after the end of a view here.
BROKEN = {"fft.fftfreq"}
# As LAPACK writes them: column by column.
COLUMNS = {
    "inverse", "linalg.inv", "linalg.inv_ex", "linalg.lu_factor", "linalg.lu_factor_ex",
    "linalg.qr", "linalg.svd", "linalg.cholesky", "linalg.cholesky_ex", "linalg.eigh",
    "linalg.solve", "linalg.solve_ex", "linalg.solve_triangular", "triangular_solve",
    "linalg.lu_solve", "lu_solve", "nonzero", "kron",
}  # fmt: skip


def tensors(lib, value):
    if isinstance(value, np.ndarray):
        return lib.tensor(value)
    if isinstance(value, list) and isinstance(value[0], np.ndarray):
        return [lib.tensor(v) for v in value]
    return value


def call(lib, name: str, **more):
    args, kwargs = CALLS[name]
    lib.manual_seed(0)
    return find(lib, name)(*(tensors(lib, a) for a in args), **kwargs, **more)


@functools.cache
def plain(lib, name: str):
    return call(lib, name)


def several(result) -> list:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def values(x) -> tuple:
    x = x.detach().resolve_conj()
    return str(x.dtype), tuple(x.shape), np.array(x.tolist())


def outcome(lib, name: str, make):
    """What a call with out=make(lib, dtype, shape) gives: the error's type and words, or whether it
    returned what it was given, the values there (make's second result shows them), the warnings.
    """
    results = several(result := plain(lib, name))
    pairs = [make(lib, r.dtype, tuple(r.shape)) for r in results]
    outs = [out for out, _ in pairs]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            given = call(lib, name, out=outs[0] if result is results[0] else tuple(outs))
        except Exception as error:
            return type(error).__name__, str(error).partition("\n")[0]
    returned = given is None or [x is o for x, o in zip(several(given), outs, strict=True)]
    told = {str(w.message)[:140] for w in caught if "An output with one" in str(w.message)}
    return returned, given is None, told, [values(seen) for _, seen in pairs]


def same(ours, theirs) -> bool:
    if len(ours) == 2 or len(theirs) == 2:  # errors
        return ours[0] == theirs[0] and gist(ours[1]) == gist(theirs[1])
    if ours[:3] != theirs[:3]:
        return False
    return all(
        a[:2] == b[:2] and np.allclose(a[2], b[2], rtol=1e-4, atol=1e-5)
        for a, b in zip(ours[3], theirs[3], strict=True)
    )


def gist(message: str) -> str:
    """The words without the name of the function that torch calls inside, and what else is its
    own.
    """
    for words in (
        "functions with out=... arguments don't support",
        "output tensor's dtype is wrong",
    ):
        if words in message:
            return words
    return message.replace("2 expects", "n expects").replace("ifftn", "fftn")


def differing(make, names=CALLS, but=frozenset()) -> dict:
    """The functions whose outcome differs from torch's."""
    wrong = {}
    for name in names:
        if name in but or name in BROKEN:
            continue
        theirs, ours = (outcome(lib, name, make) for lib in LIBRARIES)
        if not same(ours, theirs):
            wrong[name] = ours, theirs
    return wrong


def whole(lib, dtype, shape):
    out = lib.full(shape, 1, dtype=dtype)
    return out, out


def test_the_right_dtype_and_shape():
    assert differing(whole) == {}


def test_empty_takes_the_result_shape():
    def empty(lib, dtype, shape):
        out = lib.empty(0, dtype=dtype)
        return out, out

    assert differing(empty) == {}


def test_another_shape_is_resized_on_its_storage_with_a_warning():
    def part(lib, dtype, shape):
        base = lib.zeros(60, dtype=dtype)
        return base[5:9], base

    # torch sees no harm in some, and warns of the indices of mode and kthvalue only once.
    quiet = {"mode", "kthvalue", "multinomial", "normal", "histc"}
    assert differing(part, but=COLUMNS | quiet) == {}


def test_steps_in_memory_are_kept():
    def apart(lib, dtype, shape):
        base = lib.zeros((*shape, 2), dtype=dtype)
        return base[..., 0], base

    def turned(lib, dtype, shape):
        base = lib.zeros(tuple(reversed(shape)), dtype=dtype)
        return base.permute(tuple(reversed(range(len(shape))))), base

    # torch's gelu leaves such a tensor as it was.
    assert differing(apart, but={"nn.functional.gelu"}) == {}
    assert differing(turned, but={"normal", "nn.functional.gelu"}) == {}


# Where torch names the indices first, has other words for whole dtypes, asserts inside, truncates
# before it compares, or refuses complex numbers that hold the result as well.
OTHER_WORDS = {
    "median", "nanmedian", "ldexp", "mvlgamma", "special.multigammaln", "diag", "matrix_power",
    "linalg.matrix_power", "fft.rfftfreq", "heaviside", "std", "var", "bernoulli", "normal",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["float64", "complex64", "int64"])
def test_other_dtypes(kind):
    def other(lib, dtype, shape):
        out = lib.full(shape, 1, dtype=getattr(lib, kind))
        return out, out

    assert differing(other, but=OTHER_WORDS) == {}


def test_elements_that_share_memory():
    def expanded(lib, dtype, shape):
        base = lib.zeros((1,) * len(shape), dtype=dtype)
        return base.expand(shape), base

    with_dims = (n for n in CALLS if several(plain(torch, n))[0].ndim)
    wrong = differing(expanded, with_dims)
    # torch writes all results of these to one place, one after the other.
    assert {ours[0] for ours, _ in wrong.values()} == {"RuntimeError"}
    assert len(wrong) < 40


@pytest.mark.parametrize("name", ["linspace", "eye", "logspace", "arange", "zeros", "full"])
def test_created_in_the_dtype_of_out(name):
    for lib in LIBRARIES:
        out = lib.zeros(0, dtype=lib.float64)
        result = call(lib, name, out=out)
        assert result is out and str(out.dtype) == "torch.float64"
        with pytest.raises(RuntimeError, match="dtype Float does not match dtype of out parameter"):
            call(lib, name, out=out, dtype=lib.float32)


def test_what_is_no_tensor_or_not_as_many():
    for lib in LIBRARIES:
        x = lib.ones(2, 2)
        with pytest.raises(TypeError):
            lib.max(x, 0, out=lib.ones(2))
        with pytest.raises(TypeError, match="expected tuple of 2 elements but got 1"):
            lib.max(x, 0, out=(lib.ones(2),))
        with pytest.raises(TypeError, match="argument 'out' must be Tensor, not tuple"):
            lib.add(x, 1, out=(x,))
        with pytest.raises(TypeError, match="out"):
            lib.nn.functional.silu(x, out=x)
        result = lib.max(x, 0, out=(lib.ones(2), lib.ones(2, dtype=lib.int64)))
        assert result.values.tolist() == [1, 1]


def test_gradients_are_refused():
    for lib in LIBRARIES:
        x, plain = lib.ones(2, requires_grad=True), lib.ones(2)
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            lib.add(x, 1, out=plain)
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            lib.add(plain, 1, out=x)
        with lib.no_grad():
            assert lib.add(x, 1, out=plain).tolist() == [2, 2]
        assert lib.zeros(2, requires_grad=True, out=lib.ones(2)).requires_grad
