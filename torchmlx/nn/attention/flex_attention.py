"""Attention whose scores and mask users write as functions. torch.nn.attention.flex_attention.

Such a function gets all indices at once, as tensors that broadcast to [batch, heads, queries,
keys], where torch calls it on numbers one at a time: arithmetic, comparisons and indexing of other
tensors give torch's results; `if` on an index cannot. The mask is kept whole, not in blocks, so
that memory grows with queries times keys.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ...core import dtype as dtypes
from ...core.op import TABLE
from ...core.tensor import Tensor

__all__ = [
    "AuxOutput", "AuxRequest", "BlockMask", "and_masks", "create_block_mask", "create_mask",
    "flex_attention", "noop_mask", "or_masks",
]  # fmt: skip

BLOCK = _DEFAULT_SPARSE_BLOCK_SIZE = 128  # transformers imports the second name


class AuxRequest(NamedTuple):
    """What flex_attention is to give besides its result."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """What an AuxRequest asked for, else None."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def noop_mask(batch, head, q_idx, kv_idx):
    """Every query sees every key."""
    return TABLE["ones"].call((), dtype=dtypes.bool_)


def _combined(functions: tuple, all_of: bool) -> Callable:
    if not all(callable(f) for f in functions):
        raise RuntimeError(f"All inputs should be callable mask_mods: {functions}")

    def combined(batch, head, q_idx, kv_idx):
        result = functions[0](batch, head, q_idx, kv_idx)
        for function in functions[1:]:
            found = function(batch, head, q_idx, kv_idx)
            result = result & found if all_of else result | found
        return result

    return combined


def and_masks(*mask_mods: Callable) -> Callable:
    """A mask where all of these are true."""
    return _combined(mask_mods, True)


def or_masks(*mask_mods: Callable) -> Callable:
    """A mask where one of these is true."""
    return _combined(mask_mods, False)


def _indices(*sizes: int, device) -> list[Any]:
    """Batch, head, query and key as tensors that broadcast against each other."""
    arange = TABLE["arange"].call
    return [
        arange(size, device=device).reshape([-1 if d == place else 1 for d in range(len(sizes))])
        for place, size in enumerate(sizes)
    ]


def _arguments(function: Callable) -> int:
    """How many positional arguments a function must be given."""
    return sum(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        for p in inspect.signature(function).parameters.values()
    )


def create_mask(
    mod_fn: Callable, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device="cpu"
) -> Tensor:
    """The mask [B, H, Q_LEN, KV_LEN] of a function of batch, head, query and key; None means 1.

    bool for a mask_mod; for a score_mod, which takes the score first, what it makes of zeros.
    """
    sizes = (B or 1, H or 1, Q_LEN, KV_LEN)
    indices = _indices(*sizes, device=device)
    if _arguments(mod_fn) == 5:  # a score_mod
        return mod_fn(TABLE["zeros"].call(sizes, device=device), *indices)
    return mod_fn(*indices).broadcast_to(sizes)


class BlockMask:
    """A mask, [B, H, Q_LEN, KV_LEN] bool, and the function that made it."""

    def __init__(self, mask: Any, mask_mod: Callable, block_size: tuple[int, int]):
        self.mask, self.mask_mod, self.BLOCK_SIZE = mask, mask_mod, block_size
        self.seq_lengths = tuple(mask.shape[-2:])

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, H, Q_LEN, KV_LEN)."""
        return tuple(self.mask.shape)

    def numel(self) -> int:
        """Elements of the mask."""
        return self.mask.numel()

    def to_dense(self) -> Tensor:
        """int32 [B, H, blocks of queries, blocks of keys]: 1 where a block has something to see."""
        rows, columns = (
            math.ceil(n / b) for n, b in zip(self.seq_lengths, self.BLOCK_SIZE, strict=True)
        )
        pad = (
            0, columns * self.BLOCK_SIZE[1] - self.seq_lengths[1],
            0, rows * self.BLOCK_SIZE[0] - self.seq_lengths[0],
        )  # fmt: skip
        whole = TABLE["pad"].call(self.mask, pad)
        blocks = whole.reshape(
            *self.mask.shape[:2], rows, self.BLOCK_SIZE[0], columns, self.BLOCK_SIZE[1]
        )
        return blocks.any(-1).any(-2).to(dtypes.int32)

    def sparsity(self) -> float:
        """Per cent of the mask that lies in no block where something is seen, as torch counts."""
        dense: Any = self.to_dense()
        seen = dense.sum().item() * self.BLOCK_SIZE[0] * self.BLOCK_SIZE[1]
        return 100 * (1 - seen / self.numel())

    def to(self, device) -> BlockMask:
        """The same on a device."""
        return BlockMask(self.mask.to(device), self.mask_mod, self.BLOCK_SIZE)

    def __getitem__(self, index) -> BlockMask:
        return BlockMask(self.mask[index], self.mask_mod, self.BLOCK_SIZE)


def create_block_mask(
    mask_mod: Callable, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device=None,
    BLOCK_SIZE: int | tuple[int, int] = BLOCK, _compile: bool = False,
) -> BlockMask:  # fmt: skip
    """The mask of `mask_mod`(batch, head, query, key) for flex_attention; B, H None: for all."""
    if not mask_mod.__code__.co_argcount == 4:
        raise AssertionError(
            "create-block_mask requires a mask_mod function of (batch, head, q_idx, kv_idx)"
        )
    block = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    where = TABLE["zeros"].call((), device=device).device
    return BlockMask(create_mask(mask_mod, B, H, Q_LEN, KV_LEN, where), mask_mod, block)


def _check(query, key, value, enable_gqa: bool) -> None:
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
        raise NotImplementedError("NYI: query, key, and value must be 4D tensors")
    if not enable_gqa and query.shape[-3] != key.shape[-3]:
        raise ValueError(
            "Expect query and key/value to have the same number of heads but got Hq="
            f"{query.shape[-3]} and Hkv={key.shape[-3]}. Try setting enable_gqa=True for GQA."
        )
    if enable_gqa and query.shape[1] % key.shape[1]:
        raise ValueError(
            "Expect number of query heads to be a multiple of kv heads for GQA but got Hq="
            f"{query.shape[1]} and Hkv={key.shape[1]}."
        )


def flex_attention(
    query: Any, key: Any, value: Any, score_mod: Callable | None = None,
    block_mask: BlockMask | None = None, scale: float | None = None, enable_gqa: bool = False,
    return_lse: bool = False, kernel_options: dict | None = None, *, return_aux=None,
):  # fmt: skip
    """softmax(score_mod(query key^T scale), masked) value. torch.nn.attention.flex_attention.

    query [B, Hq, L, E], key [B, Hkv, S, E], value [B, Hkv, S, Ev]; score_mod(score, batch, head,
    query, key). A query that sees no key gets zeros. With return_lse also the logarithms, float32
    [B, Hq, L], of the sums of exponentials; return_aux asks for these and for the largest scores in
    an AuxOutput. Computed in float32.
    """
    _check(query, key, value, enable_gqa)
    if return_aux is not None and return_lse:
        raise ValueError("Cannot specify both return_lse and return_aux")
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    seen = None if block_mask is None else _mask_for(block_mask, query.shape[2], key.shape[2])
    plain = score_mod is None and not return_lse and return_aux is None
    if plain and not _blind(seen):
        attention = TABLE["scaled_dot_product_attention"].call
        return attention(query, key, value, attn_mask=seen, scale=scale)
    scores = (query.float() @ key.float().transpose(-1, -2)) * scale
    if score_mod is not None:
        scores = score_mod(scores, *_indices(*scores.shape, device=query.device)).float()
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse == -math.inf, 0)[..., None]).exp()
    out = (weights @ value.float()).to(query.dtype)
    if return_aux is None:
        return (out, lse) if return_lse else out
    return out, AuxOutput(
        lse if return_aux.lse else None, scores.amax(-1) if return_aux.max_scores else None
    )


def _mask_for(block_mask: BlockMask, queries: int, keys: int):
    rows, columns = block_mask.seq_lengths
    if queries > rows or keys > columns:
        raise ValueError(
            f"block_mask was created for block_mask.shape={block_mask.shape} but got q_len="
            f"{queries} and kv_len={keys}. As the block mask was created for a smaller length than "
            "you're using it for, you likely need to create a new block mask."
        )
    return block_mask.mask[:, :, :queries, :keys]


def _blind(seen) -> bool:
    """Whether some query sees no key."""
    return seen is not None and not bool(seen.any(-1).all())
