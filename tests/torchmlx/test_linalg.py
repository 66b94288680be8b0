"""Linear algebra, norms of matrices, distances, Fourier transforms."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch

import torchmlx

from .parity import data, parity

ONE = ("float32", "float64")
A = data(4, 4)
POSITIVE = (A @ A.T + 4 * np.eye(4)).astype(np.float32)
LOOSE = 2e-4


@pytest.mark.parametrize(
    "name",
    ["linalg.inv", "inverse", "linalg.det", "slogdet", "linalg.slogdet", "logdet", "linalg.pinv",
     "linalg.svdvals", "linalg.matrix_rank", "linalg.cond", "linalg.eigvalsh", "matrix_exp"],
)  # fmt: skip
def test_of_one_matrix(name):
    parity(name, POSITIVE, dtypes=ONE, tolerance=LOOSE)
    parity(name, data(2, 3, 3), dtypes=ONE, tolerance=LOOSE)


def test_factorisations():
    parity("linalg.cholesky", POSITIVE, dtypes=ONE, tolerance=LOOSE)
    parity("cholesky", POSITIVE, upper=True, dtypes=ONE, tolerance=LOOSE)
    parity("linalg.qr", data(4, 3), dtypes=ONE, tolerance=LOOSE)
    parity("linalg.qr", data(3, 4), "complete", dtypes=ONE, tolerance=LOOSE)
    u, s, vh = torchmlx.linalg.svd(torchmlx.tensor(data(4, 3)), full_matrices=False)
    np.testing.assert_allclose(((u * s) @ vh).tolist(), data(4, 3), atol=1e-5)
    values, vectors = torchmlx.linalg.eigh(torchmlx.tensor(POSITIVE))
    np.testing.assert_allclose(((vectors * values) @ vectors.T).tolist(), POSITIVE, atol=1e-4)


def test_what_has_no_answer():
    for name, x in (("linalg.inv", np.zeros((2, 2), np.float32)), ("linalg.cholesky", -POSITIVE)):
        with pytest.raises(torchmlx.linalg.LinAlgError):
            getattr(torchmlx.linalg, name[7:])(torchmlx.tensor(x))
    parity("linalg.inv", data(3, 4), dtypes=("float32",))
    parity("linalg.inv", np.ones((2, 2), np.int64))


def test_solving():
    for b in (data(4, 2), data(4)):
        parity("linalg.solve", POSITIVE, b, dtypes=ONE, tolerance=LOOSE)
    parity("linalg.solve", data(2, 3, 3), data(2, 3), dtypes=ONE, tolerance=LOOSE)
    parity("linalg.solve", POSITIVE, data(2, 4), left=False, dtypes=ONE, tolerance=LOOSE)
    for upper in (False, True):
        for unit in (False, True):
            how = {"upper": upper, "unitriangular": unit, "dtypes": ONE, "tolerance": LOOSE}
            parity("linalg.solve_triangular", POSITIVE, data(4, 2), **how)
            parity("linalg.solve_triangular", POSITIVE, data(2, 4), left=False, **how)


@pytest.mark.parametrize("n", [-2, 0, 1, 3])
def test_matrix_power(n):
    parity("matrix_power", POSITIVE, n, dtypes=ONE, tolerance=LOOSE)


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, float("inf"), -float("inf"), 3])
def test_matrix_norms(order):
    parity("linalg.matrix_norm", A, order, keepdim=True, dtypes=ONE, tolerance=1e-5)
    parity("linalg.norm", data(3, 4, 5), order, dim=(0, 2), dtypes=ONE, tolerance=1e-5)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, float("inf")])
def test_distances(p):
    parity("cdist", data(2, 5, 3), data(2, 4, 3, seed=1), p, dtypes=("float32",), tolerance=1e-5)
    parity("dist", data(5), data(5, seed=1), p, dtypes=("float32",))


def test_covariance():
    parity("cov", data(3, 6), dtypes=("float32",))
    parity("corrcoef", data(3, 6), dtypes=("float32",))
    parity("linalg.cross", data(4, 3), data(4, 3, seed=1), dtypes=("float32",))
    parity("renorm", data(3, 4), 2.0, 0, 0.5, dtypes=("float32",))


@pytest.mark.parametrize("name", ["inv", "cholesky", "det", "solve"])
def test_gradients_are_those_of_finite_differences(name):
    from torchmlx.aten import linalg, triangular

    function = {
        "inv": lambda a: linalg.inverse_of(a),
        "cholesky": lambda a: triangular._factor(a)[0],
        "det": lambda a: linalg._det(a),
        "solve": lambda a: linalg._solve(a, mx.array(np.eye(4)[:, :2], dtype=mx.float64)),
    }[name]
    with mx.stream(mx.cpu):
        x = mx.array(POSITIVE.astype(np.float64), dtype=mx.float64)
        weights = mx.array(np.asarray(np.random.default_rng(0).standard_normal(function(x).shape)))
        weights = weights.astype(mx.float64)
        _, (slope,) = mx.vjp(function, [x], [weights])
        step = np.random.default_rng(1).standard_normal((4, 4))
        step = mx.array(step + step.T, dtype=mx.float64)  # cholesky reads one triangle only
        h = 1e-6
        ends = [float(mx.sum(function(x + sign * h * step) * weights).item()) for sign in (1, -1)]
        assert float(mx.sum(slope * step).item()) == pytest.approx(
            (ends[0] - ends[1]) / (2 * h), 1e-4
        )


def test_what_has_no_derivative_says_so():
    tall = torchmlx.tensor(data(4, 3), requires_grad=True)
    for mode, message in (("r", "depends on Q"), ("complete", "nrows > ncols")):
        with pytest.raises(NotImplementedError, match=message):
            torchmlx.linalg.qr(tall, mode).R.sum().backward()


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_fft(name, norm):
    for n in (None, 7, 4):
        parity(f"fft.{name}", data(3, 6), n, norm=norm, dtypes=("float32",), tolerance=1e-5)
    for several in (f"fft.{name}2", f"fft.{name}n"):
        parity(several, data(3, 6), norm=norm, dtypes=("float32",), tolerance=1e-5)
        parity(several, data(2, 3, 6), (2, 5), norm=norm, dtypes=("float32",), tolerance=1e-5)


def test_fft_helpers():
    parity("fft.fftfreq", 7, 0.5)
    parity("fft.fftshift", data(3, 5), dtypes=("float32",))
    for name in ("hann", "hamming", "blackman", "bartlett", "kaiser"):
        parity(f"{name}_window", 9)
        parity(f"{name}_window", 8, False)
        double = (getattr(lib, f"{name}_window")(9, dtype=lib.float64) for lib in (torchmlx, torch))
        np.testing.assert_allclose(*(w.numpy() for w in double), rtol=1e-12, atol=1e-15)


def test_short_time_transform_and_back():
    window = np.hanning(16).astype(np.float32) + 0.1
    parity("stft", data(2, 100), 16, window=window, return_complex=False, dtypes=("float32",),
           tolerance=1e-4)  # fmt: skip
    x, w = torchmlx.tensor(data(2, 100)), torchmlx.tensor(window)
    spectrum = torchmlx.stft(x, 16, window=w, return_complex=True)
    back = torchmlx.istft(spectrum, 16, window=w, length=100)
    np.testing.assert_allclose(back.tolist(), data(2, 100), atol=1e-5)
