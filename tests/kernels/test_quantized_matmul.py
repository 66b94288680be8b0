"""quantized_matmul against MLX's own, its gradients, and what it refuses."""

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.kernels.quantized_matmul import DEFAULTS, quantized_matmul


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape, np.float32))


@pytest.mark.parametrize("mode", DEFAULTS)
def test_as_mlx(mode):
    x, w = normal(3, 128), mx.quantize(normal(20, 128, seed=1), mode=mode)
    got, want = quantized_matmul(x, *w, mode=mode), mx.quantized_matmul(x, *w, mode=mode)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("mode", DEFAULTS)
@pytest.mark.parametrize("leading", [(3,), (2, 3)])
def test_gradients(mode, leading):
    """Of x always, of affine scales and biases too: those of the product of plain weights."""
    group_size, bits = DEFAULTS[mode]
    x, (w, *rest) = normal(*leading, 128), mx.quantize(normal(20, 128, seed=1), mode=mode)
    cotangent = normal(*leading, 20, seed=2)

    def plain(x, *rest):
        codes = mx.dequantize(w, *rest, mode=mode, dtype=mx.float32)
        if mode == "affine":
            scales, biases = (mx.repeat(each, group_size, axis=1) for each in rest)
            ones, zeros = mx.ones_like(rest[0]), mx.zeros_like(rest[0])
            codes = mx.dequantize(w, ones, zeros, mode=mode, dtype=mx.float32) * scales + biases
        return [x @ codes.T]

    def ours(x, *rest):
        return [quantized_matmul(x, w, *rest, mode=mode)]

    varied = [x, *rest] if mode == "affine" else [x]
    fixed = [] if mode == "affine" else rest
    got = mx.vjp(lambda *a: ours(*a, *fixed), varied, [cotangent])[1]
    want = mx.vjp(lambda *a: plain(*a, *fixed), varied, [cotangent])[1]
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_what_it_refuses():
    x, (w, scales, biases) = normal(2, 128), mx.quantize(normal(20, 128, seed=1))
    with pytest.raises(ValueError, match="mode 'int4' is not one of affine"):
        quantized_matmul(x, w, scales, biases, mode="int4")
    with pytest.raises(ValueError, match="affine has no 4 bits in groups of 48"):
        quantized_matmul(x, w, scales, biases, 48)
    with pytest.raises(ValueError, match="mxfp4 has no 8 bits in groups of 32"):
        quantized_matmul(x, w, scales, None, 32, 8, "mxfp4")
    with pytest.raises(ValueError, match="does not fit 8-bit w"):
        quantized_matmul(x, w, scales, biases, bits=8)
    with pytest.raises(ValueError, match="do not fit x .* in groups of 32"):
        quantized_matmul(x, w, scales, biases, 32)
    with pytest.raises(ValueError, match="affine has biases"):
        quantized_matmul(x, w, scales)
    with pytest.raises(TypeError, match="uint32 w, not mlx.core.float32, mlx.core.int32"):
        quantized_matmul(x, w.astype(mx.int32), scales, biases)
    with pytest.raises(TypeError, match="scales are mlx.core.uint8"):
        quantized_matmul(x, w, scales.astype(mx.uint8), biases.astype(mx.uint8))
