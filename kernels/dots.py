"""MSL shared by kernels that stream weights past a few rows of x: 16-byte reads, x staged once.

A simdgroup takes a row of weights in steps of 32 runs, one a lane; a run is 16 bytes: 4 floats, 8
halves or 16 e4m3 codes. x is staged in threadgroup memory as floats, in the order in which lanes
read it: four values of every lane, then the next four, so that neither the reads of w nor those of
x stride over memory.
"""

from . import e4m3

HEADER = (
    e4m3.READ
    + """
inline void unpack(uint4 q, thread float* values, float) {
    for (uint i = 0; i < 4; i++) {
        values[i] = as_type<float>(q[i]);
    }
}

inline void unpack(uint4 q, thread float* values, half) {
    for (uint i = 0; i < 4; i++) {
        half2 pair = as_type<half2>(q[i]);
        values[2 * i] = float(pair.x);
        values[2 * i + 1] = float(pair.y);
    }
}

inline void unpack(uint4 q, thread float* values, bfloat16_t) {
    for (uint i = 0; i < 4; i++) {
        values[2 * i] = as_type<float>(q[i] << 16);
        values[2 * i + 1] = as_type<float>(q[i] & 0xffff0000u);
    }
}

inline void unpack(uint4 q, thread float* values, uint8_t) {
    for (uint i = 0; i < 4; i++) {
        float4 four = widen_e4m3x4(q[i]);
        for (uint j = 0; j < 4; j++) {
            values[4 * i + j] = four[j];
        }
    }
}

// Whether rows of k weights can be read 16 bytes at a time: a view may start at any element.
template <typename W>
inline bool wide_rows(const device W* w, uint k) {
    return (reinterpret_cast<ulong>(w) & 15) == 0 && k % (16 / sizeof(W)) == 0;
}

// The run of weights at `at`, `left` elements before the end of its row; zeros beyond.
template <typename W>
inline void read_run(const device W* w, ulong at, uint left, bool wide, thread float* values) {
    if (wide) {
        unpack(*reinterpret_cast<const device uint4*>(w + at), values, W(0));
        return;
    }
    for (uint j = 0; j < 16 / sizeof(W); j++) {
        values[j] = j < left ? widen(w[at + j]) : 0.0f;
    }
}

// Where element e of a row of x is staged.
template <uint RUN>
inline uint slot(uint e) {
    uint in_step = e % (32 * RUN);
    uint in_run = e % RUN;
    return e - in_step + in_run / 4 * 128 + in_step / RUN * 4 + in_run % 4;
}

// A run of weights times the x of this lane's run in the step that starts at `staged`.
template <uint RUN>
inline float dot_run(const thread float* values, const threadgroup float4* staged, uint lane) {
    float sum = 0.0f;
    for (uint i = 0; i < RUN / 4; i++) {
        float4 x = staged[32 * i + lane];
        for (uint j = 0; j < 4; j++) {
            sum += values[4 * i + j] * x[j];
        }
    }
    return sum;
}
"""
)

# Floats of x that a threadgroup stages at a time: as many steps as 8 KiB hold, but one at least.
STAGED = 2048


def run(itemsize: int) -> int:
    """Weights of `itemsize` bytes in a run."""
    return 16 // itemsize


def chunk(rows: int, itemsize: int) -> int:
    """Elements of each of `rows` rows of x that are staged at a time: whole steps of 32 runs."""
    step = 32 * run(itemsize)
    return max(STAGED // rows // step, 1) * step
