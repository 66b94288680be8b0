"""Texts that tokenizers trip over, and a small byte-level tokenizer."""

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "naïve café — 你好，世界 🎉👩‍👩‍👧 \u0301e \u202e",
    "def f(x):\n    return x ** 2\n\n\n\tpass\r\n",
    "1234 5 67.89 １２ ³ ½",
    "a   b \n\n c\t\td",
    "<|im_start|>user\nhi<|im_end|> <think>x</think>",
    "I'm you're WE'LL don't . , ! ?",
    "\u0000\u007f\ufffd\U0010ffff",
    "السلام עברית हिन्दी ไทย",
]
CORPUS = [*TEXTS, "the cat sat on the mat and the dog ran to the cat . " * 20]
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def byte_level() -> tokenizers.Tokenizer:
    """Byte-level BPE, as Qwen, Llama 3 and SmolLM2."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("a space é")])
    return tokenizer
