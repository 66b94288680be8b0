"""Reversed leading axes: negative strides from row to row are strides like others."""

import mlx.core as mx
import numpy as np

from torchmlx.kernels.gemv import linear
from torchmlx.kernels.matmul import matmul
from torchmlx.kernels.softmax import softmax


def test_reversed_axes_before_rows(extension):
    base = mx.array(np.random.default_rng(0).standard_normal((3, 20, 40), np.float32))
    w = mx.array(np.random.default_rng(1).standard_normal((7, 40), np.float32))
    for view in (base[:, ::-1], base[:, ::-2, ::3], base[::-1], base[::-1, ::-1]):
        small = w[:, : view.shape[-1]]
        want = np.array(view) @ np.array(small).T
        np.testing.assert_allclose(linear(view, small), want, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(matmul(view, small.T), want, rtol=1e-4, atol=1e-4)
        e = np.exp(np.array(view))
        np.testing.assert_allclose(softmax(view), e / e.sum(-1, keepdims=True), rtol=1e-5)
