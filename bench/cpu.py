"""Our CPU kernels and SmolLM2-135M against torch on the same cores: issue 4's whole table.

Both sides use as many threads as this process has cores, take turns, and read weights that come
from memory where the work is bound by it. Times are medians in milliseconds. `python -m bench.cpu
GROUP...` measures some groups of rows (an unknown one lists them). What is not installed is left
out, and said. On two cores of x86 with AMX, for which the bars are, a missed one ends in exit
code 1.
"""

import sys
from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx
import numpy as np
import torch

from torchmlx.kernels import native, registry

from . import growth, smollm2
from .table import ROTATED, Work, print_header, print_works, read_bandwidth

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def main(names: Sequence[str] = ()) -> None:
    """Measure the groups of those names, all if there are none, and print a line for each work."""
    if unknown := [name for name in names if name not in (*GROUPS, GROWTH)]:
        raise SystemExit(f"no group {', '.join(unknown)}; there are: {', '.join(GROUPS)}, {GROWTH}")
    names = names or (*GROUPS, GROWTH)
    threads = native.cores()
    torch.set_num_threads(threads)
    module, reason = native.load()
    judged = threads == 2 and module is not None and "amx" in module.instruction_sets()
    print(f"{threads} threads; {module.instruction_set() if module else reason}")
    if not judged:
        why = "no AMX here" if threads == 2 else f"{threads} cores here"
        print(f"bars are for 2 cores with AMX; below the bar: reported, not judged: {why}")
    bandwidth = read_bandwidth(module)
    print(f"read bandwidth: {bandwidth / 1e9:.1f} GB/s\n")
    print_header()
    works = (work for name in names if name in GROUPS for work in GROUPS[name]())
    missed = print_works(works, bandwidth, "missed" if judged else "below")
    if GROWTH in names:
        growth.main()
    if judged and missed:
        raise SystemExit(f"{missed} works miss a bar")


def pair(shape: tuple[int, ...], dtype: str, scale: float = 1.0) -> tuple[mx.array, torch.Tensor]:
    """The same random values for both."""
    values = np.random.default_rng(0).standard_normal(shape, np.float32) * np.float32(scale)
    return mx.array(values).astype(getattr(mx, dtype)), torch.tensor(values).to(DTYPES[dtype])


def products() -> Iterator[Work]:
    """256x2048 @ 2048x8192."""
    for dtype in DTYPES:
        yield product(dtype)


def product(dtype: str) -> Work:
    a, ta = pair((256, 2048), dtype)
    b, tb = pair((2048, 8192), dtype)
    matmul = registry.get("matmul").function
    mx.eval(a, b)
    return Work(f"matmul 256x2048 @ 2048x8192 {dtype}", lambda: mx.eval(matmul(a, b)),
                lambda: ta @ tb, 0.9)  # fmt: skip


def single_rows() -> Iterator[Work]:
    """A token through layers 2048 -> 8192, as many as do not fit the cache."""
    for dtype in DTYPES:
        yield single_row(dtype)
    for form in FEW_BITS:
        yield few_bits(form)


def single_row(dtype: str) -> Work:
    linear = registry.get("gemv").function
    x, tx = pair((1, 2048), dtype)
    w, tw = pair((8192, 2048), dtype, 0.02)
    count = -(-ROTATED // w.nbytes)
    many = [w + 0 for _ in range(count)]
    torches = [tw.clone() for _ in range(count)]
    mx.eval(x, many)
    bar = 0.0 if dtype == "float32" else 4.0
    return Work(
        f"linear 1x2048 -> 8192 {dtype}",
        lambda: mx.eval([linear(x, each) for each in many]),
        lambda: [torch.nn.functional.linear(tx, each) for each in torches],
        bar,
        w.nbytes,
        count,
        0.85,
    )


# Of weights in few bits: torch's bfloat16 time over ours, and share of the bandwidth, that issue 4
# asks for, if it does.
FEW_BITS = {"fp8": (7.0, 0.75), "affine": (10.0, 0.0)}
FEW_BITS |= dict.fromkeys(("mxfp4", "mxfp8", "nvfp4"), (0.0, 0.0))


def stored(w: mx.array, form: str) -> tuple[list[mx.array], Callable[..., mx.array]]:
    """Weights in 128 x 128 blocks of e4m3, or as MLX quantises them; what multiplies x by them."""
    if form == "fp8":
        codes = mx.to_fp8(50 * w.astype(mx.float32))
        return [codes, mx.full((64, 16), 0.02)], registry.get("fp8_matmul").function
    product = registry.get("quantized_matmul").function
    return list(mx.quantize(w, mode=form)), lambda *arrays: product(*arrays, mode=form)


def few_bits(form: str) -> Work:
    """The same token with weights in few bits."""
    x, tx = pair((1, 2048), "bfloat16")
    w, tw = pair((8192, 2048), "bfloat16", 0.02)
    parts, linear = stored(w, form)
    bar, share = FEW_BITS[form]
    size = sum(part.nbytes for part in parts)
    count = -(-ROTATED // size)
    many = [[part + mx.array(0, part.dtype) for part in parts] for _ in range(count)]
    torches = [tw.clone() for _ in range(-(-ROTATED // w.nbytes))]
    mx.eval(x, many)

    def theirs():
        for i in range(count):
            torch.nn.functional.linear(tx, torches[i % len(torches)])

    return Work(f"linear 1x2048 -> 8192 {form}, torch bfloat16",
                lambda: mx.eval([linear(x, *each) for each in many]),
                theirs, bar, size, count, share)  # fmt: skip


def prompts_of_few_bits() -> Iterator[Work]:
    for form in FEW_BITS:
        yield prompt_of_few_bits(form)


def prompt_of_few_bits(form: str) -> Work:
    """A prompt through them; issue 4 asks for nothing here."""
    x, tx = pair((256, 2048), "bfloat16")
    w, tw = pair((8192, 2048), "bfloat16", 0.02)
    parts, linear = stored(w, form)
    mx.eval(x, parts)
    return Work(f"linear 256x2048 -> 8192 {form}, torch bfloat16",
                lambda: mx.eval(linear(x, *parts)),
                lambda: torch.nn.functional.linear(tx, tw))  # fmt: skip


def casts() -> Iterator[Work]:
    """Activations to e4m3 codes, and weights from them."""
    x, tx = pair((1024, 2048), "bfloat16")
    cast = registry.get("fp8_cast").function
    codes, torches = mx.to_fp8(x), tx.to(torch.float8_e4m3fn)
    mx.eval(x, codes)
    yield Work("cast 1024x2048 bfloat16 to e4m3", lambda: mx.eval(cast(x, mx.uint8)),
               lambda: tx.to(torch.float8_e4m3fn))  # fmt: skip
    yield Work("cast 1024x2048 e4m3 to bfloat16", lambda: mx.eval(cast(codes, mx.bfloat16)),
               lambda: torches.to(torch.bfloat16))  # fmt: skip


def codes_times_codes() -> Iterator[Work]:
    """A token and a prompt times weights, both in e4m3, with a scale each."""
    product = registry.get("scaled_matmul").function
    w = mx.to_fp8(pair((8192, 2048), "bfloat16")[0])
    one, torch_one = mx.array(1.0), torch.tensor(1.0)
    torch_scaled_mm = torch.ops.aten._scaled_mm
    for rows in (1, 256):
        x = mx.to_fp8(pair((rows, 2048), "bfloat16")[0])
        mx.eval(x, w)
        tx, tw = (torch.tensor(np.array(a)).view(torch.float8_e4m3fn) for a in (x, w))

        def ours(x=x):
            mx.eval(product(x, w, one, one, dtype=mx.bfloat16))

        def theirs(tx=tx, tw=tw):
            torch_scaled_mm(tx, tw.t(), torch_one, torch_one, out_dtype=torch.bfloat16)

        yield Work(f"scaled_mm {rows}x2048 -> 8192 e4m3", ours, theirs)


def groups() -> Iterator[Work]:
    for dtype in ("float32", "bfloat16"):
        yield grouped(8, dtype, 1.2)
        yield grouped(512, dtype, 0.9)


def grouped(rows: int, dtype: str, bar: float) -> Work:
    """Tokens sorted by expert, 1024 -> 512: one for each of 8 of 32 experts, or 16 for each."""
    a, ta = pair((rows, 1024), dtype)
    w, tw = pair((32, 512, 1024), dtype, 0.03)
    ends = np.cumsum([1, 0, 0, 0] * 8 if rows == 8 else [rows // 32] * 32).astype(np.int32)
    offs, toffs = mx.array(ends), torch.tensor(ends)
    function = registry.get("grouped_matmul").function
    mx.eval(a, w, offs)
    return Work(f"grouped_matmul {rows} tokens, 32 experts {dtype}",
                lambda: mx.eval(function(a, w.swapaxes(1, 2), offs)),
                lambda: torch.nn.functional.grouped_mm(ta, tw.transpose(1, 2), offs=toffs),
                bar)  # fmt: skip


def softmaxes() -> Iterator[Work]:
    for rows, calls in ((1, 1), (1, 8), (32, 1)):
        for dtype in ("float32", "bfloat16"):
            yield softmax(rows, dtype, calls)


def softmax(rows: int, dtype: str, calls: int = 1) -> Work:
    """A vocabulary's probabilities; as many in one graph as `calls`, since MLX hands each graph to
    a thread of its own, which takes 15 to 70 us."""
    x, tx = pair((rows, 151_936), dtype)
    function = registry.get("softmax").function
    many, torches = [x + 0 for _ in range(calls)], [tx.clone() for _ in range(calls)]
    mx.eval(many)
    graph = f", {calls} in a graph" if calls > 1 else ""
    return Work(f"softmax {rows}x151936 {dtype}{graph}",
                lambda: mx.eval([function(each) for each in many]),
                lambda: [torch.softmax(each, -1) for each in torches],
                1.0, calls=calls)  # fmt: skip


def norm() -> Iterator[Work]:
    """A prompt's norms."""
    x, tx = pair((512, 2048), "bfloat16")
    w, tw = pair((2048,), "bfloat16")
    function = registry.get("rms_norm").function
    mx.eval(x, w)
    yield Work("rms_norm 512x2048 bfloat16", lambda: mx.eval(function(x, w)),
               lambda: torch.nn.functional.rms_norm(tx, (2048,), tw, 1e-6))  # fmt: skip


def attentions() -> Iterator[Work]:
    for dtype in ("float32", "bfloat16"):
        yield attend("decode 1 of 4096", dtype, 1, 4096, 1.2)
        yield attend("prefill 512", dtype, 512, 512, 0.9)


def attend(name: str, dtype: str, queries: int, keys: int, bar: float) -> Work:
    """32 heads, 8 heads of keys and values of 128."""
    q, tq = pair((1, 32, queries, 128), dtype)
    k, tk = pair((1, 8, keys, 128), dtype)
    causal = queries > 1
    attention = registry.get("attention").function
    mx.eval(q, k)

    def theirs():
        return torch.nn.functional.scaled_dot_product_attention(
            tq, tk, tk, is_causal=causal, enable_gqa=True
        )

    return Work(f"attention {name}, 32/8 heads x 128 {dtype}",
                lambda: mx.eval(attention(q, k, k, causal=causal)), theirs, bar)  # fmt: skip


def convolutions() -> Iterator[Work]:
    for dtype in ("float32", "bfloat16"):
        yield convolve((4, 32, 32), 64, 64, dtype)
        yield convolve((4, 64, 64), 256, 256, dtype)
        yield convolve((64, 64), 128, 128, dtype)


def convolve(size: tuple[int, ...], channels: int, columns: int, dtype: str) -> Work:
    """3x3x3 or 3x3, padded to keep the size; each side in the layout that it likes."""
    n = len(size)
    x, tx = pair((1, *size, channels), dtype)
    w, tw = pair((columns, *(3,) * n, channels), dtype, (3**n * channels) ** -0.5)
    first = (0, n + 1, *range(1, n + 1))
    tx, tw = (t.permute(first).contiguous() for t in (tx, tw))
    function = registry.get(f"conv{n}d").function
    torches = torch.nn.functional.conv2d if n == 2 else torch.nn.functional.conv3d
    mx.eval(x, w)
    shape = "x".join(map(str, size))
    return Work(f"conv{n}d {channels} -> {columns} on {shape} {dtype}",
                lambda: mx.eval(function(x, w, padding=1)),
                lambda: torches(tx, tw, None, 1, 1), 0.9)  # fmt: skip


# Names of rows that can be measured alone -> what makes them.
GROUPS: dict[str, Callable[[], Iterator[Work | str]]] = {
    "matmul": products,
    "linear": single_rows,
    "prompt": prompts_of_few_bits,
    "cast": casts,
    "scaled_mm": codes_times_codes,
    "grouped": groups,
    "softmax": softmaxes,
    "norm": norm,
    "attention": attentions,
    "conv": convolutions,
    "smollm2": smollm2.works,
}
GROWTH = "growth"

if __name__ == "__main__":
    main(sys.argv[1:])
