"""The e4m3 format of float8: MSL to read and write its codes, and its values for references.

Sign, four bits of exponent with bias 7, three of mantissa; no infinity, 0x7f and 0xff are NaN,
the largest value is 448. Codes travel as uint8. Bits are torch.float8_e4m3fn's.
"""

import numpy as np

# Shifted into place as a half, a code is 256 times too small, subnormals included: half's bias is
# 15 and its subnormals are exact. Only NaN needs care: it would read as 480.
READ = """
inline float widen_e4m3(uint code) {
    float value = float(as_type<half>(ushort((code & 0x80) << 8 | (code & 0x7f) << 7))) * 256.0f;
    return (code & 0x7f) == 0x7f ? metal::copysign(NAN, value) : value;
}

// Four codes, the first in the low byte.
inline float4 widen_e4m3x4(uint codes) {
    uint odd = codes >> 8;
    half2 a = as_type<half2>((codes & 0x00800080u) << 8 | (codes & 0x007f007fu) << 7);
    half2 b = as_type<half2>((odd & 0x00800080u) << 8 | (odd & 0x007f007fu) << 7);
    float4 values = float4(float(a.x), float(b.x), float(a.y), float(b.y)) * 256.0f;
    if ((((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0) {
        for (uint i = 0; i < 4; i++) {
            values[i] = widen_e4m3(codes >> (8 * i) & 0xff);
        }
    }
    return values;
}

template <typename T>
inline float widen(T x) {
    return float(x);
}

inline float widen(uint8_t code) {
    return widen_e4m3(code);
}
"""

# Rounds to nearest even and saturates, infinities included; NaN keeps its sign. Adding half a
# step to the bits rounds a normal, as a carry into the exponent is right; below 2^-6 values are
# whole multiples of 2^-9, and eight of them are the first normal.
WRITE = """
inline uint8_t narrow_e4m3(float x) {
    uint bits = as_type<uint>(x);
    uint sign = bits >> 24 & 0x80;
    uint magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return uint8_t(sign | 0x7f);
    }
    if (magnitude >= 0x43e00000u) {
        return uint8_t(sign | 0x7e);
    }
    if (magnitude < 0x3c800000u) {
        return uint8_t(sign | uint(metal::rint(as_type<float>(magnitude) * 512.0f)));
    }
    magnitude += 0x7ffffu + (magnitude >> 20 & 1);
    return uint8_t(sign | ((magnitude >> 20) - (120u << 3)));
}

template <typename T>
struct Narrow {
    static T of(float x) {
        return T(x);
    }
};

template <>
struct Narrow<uint8_t> {
    static uint8_t of(float x) {
        return narrow_e4m3(x);
    }
};
"""


def _value(code: int) -> float:
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 0x7F == 0x7F:
        return np.nan
    magnitude = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -magnitude if code & 0x80 else magnitude


VALUES = np.array([_value(code) for code in range(256)])
FINITE = VALUES[:127]


def widen(codes: np.ndarray) -> np.ndarray:
    """The float64 values of uint8 codes."""
    return VALUES[np.asarray(codes, np.uint8)]


def narrow(values: np.ndarray) -> np.ndarray:
    """The uint8 codes of `values`: to nearest even, saturating, NaN with its sign."""
    values = np.asarray(values, np.float64)
    magnitude = np.minimum(np.abs(np.nan_to_num(values, nan=0.0, posinf=448.0, neginf=-448.0)), 448)
    above = np.searchsorted(FINITE, magnitude)
    below = np.maximum(above - 1, 0)
    up, down = FINITE[above] - magnitude, magnitude - FINITE[below]
    nearest = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    codes = np.where(np.isnan(values), 0x7F, nearest)
    return (codes + 0x80 * np.signbit(values)).astype(np.uint8)
