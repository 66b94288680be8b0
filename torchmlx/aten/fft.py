"""Fourier transforms, in complex64, and the windows of short-time ones."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from ..core import dtype as dtypes
from ..core.layout import wrap_dim, wrap_dims
from ..core.op import TABLE, composite, op
from ._calling import from_host, torch_name
from .creation import made
from .shape import cat

namespace = ("fft",)


def _input(x: mx.array, real: str = "") -> mx.array:
    """x as MLX transforms it: float32 or complex64; `real`: what does not take the latter."""
    if real and x.dtype == mx.complex64:
        raise RuntimeError(f"{real} expects a real input tensor, but got {torch_name(x)}")
    if x.dtype in (mx.float16, mx.bfloat16):
        raise RuntimeError(f"Unsupported dtype {torch_name(x)}")
    if x.dtype == mx.float64:
        raise TypeError("complex128 is not supported: MLX has no such type. Use torch.complex64.")
    return x if x.dtype in (mx.float32, mx.complex64) else x.astype(mx.float32)


def _scale(norm, n: int, inverse: bool) -> float:
    """What the sum is multiplied by; torch's norm is "backward", "forward" or "ortho"."""
    if norm not in (None, "backward", "forward", "ortho"):
        raise RuntimeError(f'Invalid normalization mode: "{norm}"')
    if norm == "ortho":
        return 1 / math.sqrt(n)
    return 1 / n if (norm == "forward") != inverse else 1.0


def _sizes(x: mx.array, s, dim, halved: bool = False):
    """(sizes, dims) of a transform over several dims."""
    if dim is None:
        dims = tuple(range(0 if s is None else x.ndim - len(s), x.ndim))
    else:
        dims = wrap_dims(dim, x.ndim)
    if len(dims) != len(set(dims)) or (s is not None and len(s) > x.ndim):
        raise RuntimeError(
            f"Got shape with {len(dims)} values but input tensor only has {x.ndim} dimensions."
        )
    given = [-1] * len(dims) if s is None else s
    sizes = [x.shape[d] if n == -1 else n for n, d in zip(given, dims, strict=True)]
    if halved and s is None:
        sizes[-1] = 2 * (x.shape[dims[-1]] - 1)
    for n in sizes:
        if n < 1:
            raise RuntimeError(f"Invalid number of data points ({n}) specified")
    return sizes, dims


def _transform(x, function, sizes, dims, norm, inverse: bool) -> mx.array:
    result = function(x, sizes, dims)
    own = 1 / math.prod(sizes) if inverse else 1.0  # what MLX has multiplied by
    factor = _scale(norm, math.prod(sizes), inverse) / own
    return result if factor == 1.0 else result * factor


def _conj(x: mx.array) -> mx.array:
    return mx.conj(x) if x.dtype == mx.complex64 else x


def _of_hermitian(x: mx.array, sizes, dims) -> mx.array:
    return mx.fft.irfftn(_conj(x), sizes, dims) * math.prod(sizes)


def _to_hermitian(x: mx.array, sizes, dims) -> mx.array:
    return mx.conj(mx.fft.rfftn(x, sizes, dims)) / math.prod(sizes)


def _family(name: str, function, inverse: bool, real: bool = False, halved: bool = False) -> None:
    """fft.NAME over one dim, NAME2 over two, NAMEn over any."""

    def over(input, s, dim, norm):
        x = _input(input, name if real else "")
        sizes, dims = _sizes(x, s, dim, halved)
        return _transform(x, function, sizes, dims, norm, inverse)

    @op("fft." + name, at=namespace)
    def one(input, n=None, dim=-1, norm=None):
        return over(input, None if n is None else (n,), (wrap_dim(dim, input.ndim),), norm)

    @op(f"fft.{name}2", at=namespace)
    def two(input, s=None, dim=(-2, -1), norm=None):
        return over(input, s, dim, norm)

    @op(f"fft.{name}n", at=namespace)
    def many(input, s=None, dim=None, norm=None):
        return over(input, s, dim, norm)

    for variant, suffix in ((one, ""), (two, "2"), (many, "n")):
        variant.__doc__ = f"Discrete Fourier transform. torch.fft.{name}{suffix}."


_family("fft", mx.fft.fftn, False)
_family("ifft", mx.fft.ifftn, True)
_family("rfft", mx.fft.rfftn, False, real=True)
_family("irfft", mx.fft.irfftn, True, halved=True)
# The real transform of a Hermitian signal, and the Hermitian half of a real one's inverse.
_family("hfft", _of_hermitian, False, halved=True)
_family("ihfft", _to_hermitian, True, real=True)


def rounded(values: np.ndarray, dtype, device, requires_grad: bool):
    """float64 values as a tensor of dtype (None: the default one)."""
    target = dtype or dtypes.get_default_dtype()
    kind = np.float64 if target is dtypes.float64 else np.float32
    return made(from_host(values.astype(kind)), target, device, requires_grad)


def _frequencies(name: str, function) -> None:
    @composite("fft." + name, at=namespace)
    def frequencies(n, d=1.0, *, dtype=None, device=None, requires_grad=False, **_):
        return rounded(function(n, d), dtype, device, requires_grad)

    frequencies.__doc__ = f"The frequencies of a transform's results. torch.fft.{name}."


_frequencies("fftfreq", np.fft.fftfreq)
_frequencies("rfftfreq", np.fft.rfftfreq)


def _shift(name: str, sign: int) -> None:
    @composite("fft." + name, at=namespace)
    def shift(input, dim=None):
        dims = wrap_dims(dim, input.ndim)
        shifts = [input.shape[d] // 2 if sign > 0 else -(input.shape[d] // 2) for d in dims]
        return input.roll(shifts, dims)

    shift.__doc__ = f"Frequency zero moved to the middle (or back). torch.fft.{name}."


_shift("fftshift", 1)
_shift("ifftshift", -1)

# ---- windows


def _window(name: str, formula) -> None:
    @composite(name, at=("torch",))
    def window(
        window_length,
        periodic=True,
        *args,
        dtype=None,
        device=None,
        requires_grad=False,
        **parameters,
    ):
        parameters = {k: v for k, v in parameters.items() if k in ("alpha", "beta")}
        n = window_length
        if n < 2:
            values = np.ones(n)
        else:
            steps = np.arange(n) / (n if periodic else n - 1)
            values = formula(steps, *args, **parameters)
        return rounded(values, dtype, device, requires_grad)

    window.__doc__ = f"A window of the given length, periodic or symmetric. torch.{name}."


def _hamming(t, alpha=0.54, beta=0.46):
    return alpha - beta * np.cos(2 * np.pi * t)


def _kaiser(t, beta=12.0):
    return np.i0(beta * np.sqrt(np.maximum(0, 1 - (2 * t - 1) ** 2))) / np.i0(beta)


_window("hann_window", lambda t: _hamming(t, 0.5, 0.5))
_window("hamming_window", _hamming)
_window(
    "blackman_window",
    lambda t: 0.42 - 0.5 * np.cos(2 * np.pi * t) + 0.08 * np.cos(4 * np.pi * t),
)
_window("bartlett_window", lambda t: 1 - np.abs(2 * t - 1))
_window("kaiser_window", _kaiser)

# ---- short-time transforms


def _centred_window(window, win_length: int, n_fft: int, like):
    """The window padded to n_fft on both sides; None: ones."""
    w = like.new_ones(win_length) if window is None else window
    if win_length == n_fft:
        return w
    left = (n_fft - win_length) // 2
    result = w.new_zeros(n_fft)
    result[left : left + win_length] = w
    return result


def _reflected(x, pad: int, mode: str):
    """x [batch, n] with pad elements on both sides."""
    n = x.shape[-1]
    if mode == "constant":
        zeros = x.new_zeros(x.shape[0], pad)
        return cat([zeros, x, zeros], -1)
    index = np.pad(
        np.arange(n),
        pad,
        mode={"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode],
    )
    return x[:, made(mx.array(index.astype(np.int64)))]


@composite()
def stft(
    input, n_fft, hop_length=None, win_length=None, window=None, center=True, pad_mode="reflect",
    normalized=False, onesided=None, return_complex=None, align_to_window=None,
):  # fmt: skip
    """Short-time Fourier transform of [n] or [batch, n]: [batch,] frequencies, frames.

    torch.stft.
    """
    hop = n_fft // 4 if hop_length is None else hop_length
    length = n_fft if win_length is None else win_length
    complex_in = input.dtype.is_complex or (window is not None and window.dtype.is_complex)
    if return_complex is None:
        if not complex_in:
            raise RuntimeError(
                "stft requires the return_complex parameter be given for real inputs, and "
                "will further require that return_complex=True in a future PyTorch release."
            )
        return_complex = True
    x = input.unsqueeze(0) if input.ndim == 1 else input
    if center:
        x = _reflected(x, n_fft // 2, pad_mode)
    if not 0 < n_fft <= x.shape[-1]:
        raise RuntimeError(f"stft: expected 0 < n_fft <= {x.shape[-1]}, but got n_fft={n_fft}")
    if hop <= 0 or not 0 < length <= n_fft:
        raise RuntimeError(
            f"stft: expected hop_length > 0 and 0 < win_length <= n_fft, but got {hop} and {length}"
        )
    frames = x.unfold(-1, n_fft, hop)
    if window is not None or length != n_fft:
        frames = frames * _centred_window(window, length, n_fft, input)
    half = not complex_in if onesided is None else onesided
    transform = TABLE["fft.rfft" if half else "fft.fft"].call
    result = transform(frames, norm="ortho" if normalized else None).transpose(1, 2)
    result = result[0] if input.ndim == 1 else result
    return result if return_complex else TABLE["view_as_real"].call(result)


@composite()
def istft(
    input, n_fft, hop_length=None, win_length=None, window=None, center=True, normalized=False,
    onesided=None, length=None, return_complex=False,
):  # fmt: skip
    """The signal of a short-time Fourier transform, by overlapping and adding. torch.istft."""
    hop = n_fft // 4 if hop_length is None else hop_length
    span = n_fft if win_length is None else win_length
    x = (input.unsqueeze(0) if input.ndim == 2 else input).transpose(1, 2)  # [batch, frames, bins]
    half = x.shape[-1] != n_fft if onesided is None else onesided
    norm = "ortho" if normalized else None
    if return_complex:
        frames = TABLE["fft.ifft"].call(x, n_fft, norm=norm)
    else:
        x = x if half else x[..., : n_fft // 2 + 1]
        frames = TABLE["fft.irfft"].call(x, n_fft, norm=norm)
    w = _centred_window(window, span, n_fft, frames)
    frames = frames * w
    count, total = frames.shape[1], n_fft + hop * (frames.shape[1] - 1)
    where = np.arange(count)[:, None] * hop + np.arange(n_fft)
    index = made(mx.array(where.reshape(-1).astype(np.int64)))
    signal = frames.new_zeros(frames.shape[0], total).index_add(
        1, index, frames.reshape(frames.shape[0], -1)
    )
    weight = (w * w).expand(count, n_fft).reshape(-1)
    envelope = w.new_zeros(total).index_add(0, index, weight)
    start = n_fft // 2 if center else 0
    stop = start + length if length is not None else total - (n_fft // 2 if center else 0)
    signal, envelope = signal[:, start:stop], envelope[start:stop]
    if bool((envelope.abs() < 1e-11).any()):
        raise RuntimeError("istft: window overlap add min: 1")
    signal = signal / envelope
    if length is not None and signal.shape[1] < length:
        signal = cat([signal, signal.new_zeros(signal.shape[0], length - signal.shape[1])], 1)
    return signal[0] if input.ndim == 2 else signal
