"""A tiny random llama checkpoint with a byte-level tokenizer, written without torch."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import tokenizers

import torchmlx
from torchmlx.models import llama
from torchmlx.models.config import RopeConfig
from torchmlx.serialization.safetensors import save

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 258,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": 257,
}


def weights(config: dict | None = None, seed: int = 0) -> dict[str, mx.array]:
    """Random tensors of every parameter, the norms near 1."""
    fields = {
        k: v
        for k, v in {**CONFIG, **(config or {})}.items()
        if k in llama.ModelArgs.__dataclass_fields__
    }
    args = llama.ModelArgs(**fields, head_dim=8, rope=RopeConfig())
    with torchmlx.device("meta"):
        model = llama.Model(args)
    draw = np.random.default_rng(seed)
    return {
        name: mx.array(draw.normal(float(p.ndim == 1), 0.3, tuple(p.shape)).astype(np.float32))
        for name, p in model.named_parameters()
    }


def poison(folder: Path, name: str = "model.norm.weight", row: int = 3) -> Path:
    """The checkpoint in `folder` with NaN in a row of a weight: of the norm all logits have it, of
    an embedding those after its token. Returns `folder`."""
    tensors = weights()
    array = np.array(tensors[name])
    array[row] = np.nan
    save(folder / "model.safetensors", {**tensors, name: mx.array(array)})
    return folder


def write_tokenizer(folder: Path) -> None:
    """One token a byte, and <|im_start|> 256, <|im_end|> 257."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write(folder: Path, config: dict | None = None, generation: dict | None = None) -> Path:
    """The whole checkpoint in `folder`, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    (folder / "generation_config.json").write_text(json.dumps(generation or {}))
    write_tokenizer(folder)
    save(folder / "model.safetensors", weights(config))
    return folder
