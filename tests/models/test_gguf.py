"""GGUF files to Hugging Face folders: weights bit for bit, ids as the source's."""

import json
import random

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer as Backend

from tests.models.texts import TEXTS, byte_level
from torchmlx.errors import InputError
from torchmlx.models import gguf as converter
from torchmlx.models.checkpoint import Checkpoint
from torchmlx.models.config import RopeConfig, read_config
from torchmlx.models.convert import convert
from torchmlx.models.gguf import GGUFFile, convert_gguf
from torchmlx.models.tokenizer import Tokenizer

HIDDEN, HEADS, GROUPS, HEAD_DIM, FF, LAYERS, VOCAB = 64, 4, 2, 16, 96, 2, 402
Q = GGMLQuantizationType


def weights(architecture: str, tied: bool) -> dict[str, np.ndarray]:
    """Random float32 weights under Hugging Face names."""
    rng = np.random.default_rng(3)
    q, kv = HEADS * HEAD_DIM, GROUPS * HEAD_DIM
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        part = {
            "input_layernorm.weight": (HIDDEN,),
            "post_attention_layernorm.weight": (HIDDEN,),
            "self_attn.q_proj.weight": (q, HIDDEN),
            "self_attn.k_proj.weight": (kv, HIDDEN),
            "self_attn.v_proj.weight": (kv, HIDDEN),
            "self_attn.o_proj.weight": (HIDDEN, q),
            "mlp.gate_proj.weight": (FF, HIDDEN),
            "mlp.up_proj.weight": (FF, HIDDEN),
            "mlp.down_proj.weight": (HIDDEN, FF),
        }
        if architecture == "qwen2":
            part |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,)}
            part |= {"self_attn.v_proj.bias": (kv,)}
        if architecture == "qwen3":
            part |= {"self_attn.q_norm.weight": (HEAD_DIM,), "self_attn.k_norm.weight": (HEAD_DIM,)}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in part.items()}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def gguf_name(name: str) -> str:
    top = {new: old for old, new in converter._TOP_NAMES.items()}
    if name in top:
        return top[name]
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    old = next(old for old, new in converter._LAYER_NAMES.items() if new == stem)
    return f"blk.{layer}.{old}.{kind}"


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of q and k rows: the halves of each head interleaved."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def write(
    path,
    architecture="llama",
    tied=True,
    kind=Q.F32,
    change=None,
    metadata=None,
    tokenizer=None,
    style="gpt-2",
):
    """A small GGUF file, and its weights as float32 under Hugging Face names.

    `change` edits the tensors (GGUF names), `metadata` the keys; None removes.
    """
    tensors, expected = {}, {}
    for name, values in weights(architecture, tied).items():
        for part, heads in (("q_proj", HEADS), ("k_proj", GROUPS)):
            if architecture == "llama" and part in name:
                values = permuted(values, heads)
        stored = quantize(values, kind) if values.ndim == 2 else values
        tensors[gguf_name(name)] = (stored, kind if values.ndim == 2 else Q.F32)
        plain = dequantize(stored, kind) if values.ndim == 2 else values
        for part, heads in (("q_proj", HEADS), ("k_proj", GROUPS)):
            if architecture == "llama" and part in name:
                plain = permuted_back(plain, heads)
        expected[name] = plain
    for name, value in (change or {}).items():
        tensors.pop(name, None) if value is None else tensors.__setitem__(name, (value, Q.F32))
    writer = GGUFWriter(path, architecture)
    put_metadata(writer, architecture, tokenizer or byte_level(), style, metadata or {})
    for name, (stored, dtype) in tensors.items():
        writer.add_tensor(name, stored, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def permuted_back(values: np.ndarray, heads: int) -> np.ndarray:
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def put_metadata(writer, architecture, tokenizer: Backend, style: str, changes: dict) -> None:
    spec = json.loads(tokenizer.to_str())
    added = {token["content"]: token for token in spec["added_tokens"]}
    vocab = sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    kinds = [1 if t not in added else 3 if added[t]["special"] else 4 for t, _ in vocab]
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    keys = {
        f"{architecture}.block_count": LAYERS,
        f"{architecture}.context_length": 512,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": FF,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": GROUPS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{architecture}.rope.freq_base": 50000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": style,
        "tokenizer.ggml.tokens": [token for token, _ in vocab],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages[0].content }}é",
    } | changes
    add = {bool: writer.add_bool, float: writer.add_float32, str: writer.add_string}
    add |= {int: writer.add_uint32, list: writer.add_array}
    for key, value in keys.items():
        if value is not None:
            add[type(value)](key, value)


def check_weights(folder, expected):
    with Checkpoint(folder) as checkpoint:
        assert set(checkpoint.tensors) == set(expected)
        for info, array in checkpoint.items():
            np.testing.assert_array_equal(np.asarray(array), expected[info.name], info.name)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_float32_weights_come_back_bit_for_bit(tmp_path, architecture, tied):
    expected = write(tmp_path / "m.gguf", architecture, tied)
    out = convert_gguf(tmp_path / "m.gguf", tmp_path / "out", "float32")
    check_weights(out, expected)
    config = read_config(out)
    assert config.model_type == architecture
    assert config.values["tie_word_embeddings"] is tied
    assert config.values["head_dim"] == HEAD_DIM
    assert config.values["num_key_value_heads"] == GROUPS
    assert config.values["rms_norm_eps"] == 1e-6
    assert config.values["rope"] == RopeConfig(
        theta=50000.0, max_position_embeddings=512, original_max_position_embeddings=512
    )
    assert config.eos_token_ids == (1,)


@pytest.mark.parametrize(
    "kind", [Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1], ids=lambda kind: kind.name
)
def test_quantised_weights_are_dequantised(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(converter, "PIECE_BYTES", 5 * 4 * HIDDEN)  # several pieces a tensor
    expected = write(tmp_path / "m.gguf", kind=kind)
    check_weights(convert_gguf(tmp_path / "m.gguf", tmp_path / "out", "float32"), expected)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_equals_transformers(tmp_path, architecture):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    write(tmp_path / "m.gguf", architecture, tied=False, kind=Q.Q8_0)
    out = convert_gguf(tmp_path / "m.gguf", tmp_path / "out", "float32")
    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    loaded = load_gguf_checkpoint(tmp_path / "m.gguf", return_tensors=True, model_to_load=model)
    ours = model.state_dict()
    assert set(ours) == set(loaded["tensors"])
    for name, tensor in loaded["tensors"].items():
        assert torch.equal(tensor, ours[name]), name


@pytest.mark.parametrize(("dtype", "mlx"), [("float16", mx.float16), ("bfloat16", mx.bfloat16)])
def test_half_precision_rounds_to_nearest(tmp_path, dtype, mlx):
    expected = write(tmp_path / "m.gguf")
    out = convert_gguf(tmp_path / "m.gguf", tmp_path / "out", dtype)
    assert read_config(out).values["dtype"] == dtype
    with Checkpoint(out) as checkpoint:
        for info, array in checkpoint.items():
            assert array.dtype == mlx
            assert mx.array_equal(array, mx.array(expected[info.name]).astype(mlx)).item()


def test_float16_that_overflows_is_refused(tmp_path):
    big = np.full((HIDDEN,), 1e6, np.float32)
    write(tmp_path / "m.gguf", change={"output_norm.weight": big})
    with pytest.raises(InputError, match="output_norm.weight holds values beyond float16"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out", "float16")
    assert not (tmp_path / "out").exists()


def test_attention_biases_of_llama(tmp_path):
    rng = np.random.default_rng(0)
    sizes = {"attn_q": HEADS, "attn_k": GROUPS, "attn_v": GROUPS, "attn_output": HEADS}
    bias = {n: rng.normal(size=size * HEAD_DIM).astype(np.float32) for n, size in sizes.items()}
    change = {f"blk.{layer}.{n}.bias": b for layer in range(LAYERS) for n, b in bias.items()}
    write(tmp_path / "m.gguf", change=change)
    out = convert_gguf(tmp_path / "m.gguf", tmp_path / "out", "float32")
    assert read_config(out).values["attention_bias"] is True
    with Checkpoint(out) as checkpoint:
        q = np.asarray(checkpoint.read("model.layers.1.self_attn.q_proj.bias"))
        o = np.asarray(checkpoint.read("model.layers.1.self_attn.o_proj.bias"))
    np.testing.assert_array_equal(q, permuted_back(bias["attn_q"], HEADS))
    np.testing.assert_array_equal(o, bias["attn_output"])


def test_llama3_scaling_is_recovered_from_its_frequencies(tmp_path):
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theta = 500000.0
    plain, _ = RopeConfig(theta=theta).inverse_frequencies(HEAD_DIM)
    scaled, _ = RopeConfig(theta=theta, **scaling).inverse_frequencies(HEAD_DIM)
    metadata = {"llama.rope.freq_base": theta}
    write(tmp_path / "m.gguf", change={"rope_freqs.weight": plain / scaled}, metadata=metadata)
    out = convert_gguf(tmp_path / "m.gguf", tmp_path / "out", "float32")
    rope = read_config(out).values["rope"]
    assert rope.factor == pytest.approx(32, rel=1e-6)
    np.testing.assert_allclose(rope.inverse_frequencies(HEAD_DIM)[0], scaled, rtol=1e-5)
    strange = np.linspace(1, 7, HEAD_DIM // 2, dtype=np.float32)
    write(tmp_path / "n.gguf", change={"rope_freqs.weight": strange}, metadata=metadata)
    with pytest.raises(InputError, match="no llama3 scaling"):
        convert_gguf(tmp_path / "n.gguf", tmp_path / "x", "float32")


@pytest.mark.parametrize(
    ("kind", "extra", "expected"),
    [
        ("linear", {}, ("linear", 4.0)),
        ("yarn", {"llama.rope.scaling.original_context_length": 128}, ("yarn", 4.0)),
        ("none", {}, ("default", 1.0)),
    ],
)
def test_other_rope_scaling(tmp_path, kind, extra, expected):
    metadata = {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": 4.0, **extra}
    write(tmp_path / "m.gguf", metadata=metadata)
    rope = read_config(convert_gguf(tmp_path / "m.gguf", tmp_path / "out")).values["rope"]
    assert (rope.rope_type, rope.factor) == expected


@pytest.mark.parametrize("style", ["gpt-2", "default", "smollm", "qwen2", "llama-bpe"])
def test_tokenizer_ids_equal_transformers(tmp_path, style):
    transformers = pytest.importorskip("transformers")
    write(tmp_path / "m.gguf", style=style, metadata={"tokenizer.ggml.add_bos_token": False})
    out = convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    ours = Tokenizer.from_folder(out)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    for text in TEXTS:
        if style == "qwen2":
            text = text.replace("\u0301", "")  # transformers' GGUF loading forgets Qwen's NFC
        if style == "smollm" and any(char.isnumeric() for char in text):
            continue  # and that SmolLM2 splits between digits
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == text
    assert (ours.bos_token_id, ours.eos_token_id) == (0, 1)
    assert ours.apply_chat_template([{"role": "user", "content": "x"}]) == "xé"


def test_smollm_splits_digits_and_qwen_composes(tmp_path):
    write(tmp_path / "s.gguf", style="smollm")
    write(tmp_path / "q.gguf", style="qwen2")
    write(tmp_path / "g.gguf", style="gpt-2")
    ids = {}
    for name in "sqg":
        out = convert_gguf(tmp_path / f"{name}.gguf", tmp_path / name)
        tokenizer = Tokenizer.from_folder(out)
        ids[name] = tokenizer.encode("1234"), tokenizer.encode("e\u0301")
        assert tokenizer.encode("é") == ids["q"][1] if name == "q" else True
    assert len(ids["s"][0]) == 4 and len(ids["g"][0]) < 4
    assert ids["q"][1] != ids["g"][1]


@pytest.mark.parametrize("flag", [None, True, False])
def test_the_begin_token(tmp_path, flag):
    write(tmp_path / "m.gguf", style="llama-bpe", metadata={"tokenizer.ggml.add_bos_token": flag})
    tokenizer = Tokenizer.from_folder(convert_gguf(tmp_path / "m.gguf", tmp_path / "out"))
    plain = tokenizer.encode("the cat", add_special_tokens=False)
    assert tokenizer.encode("the cat") == (plain if flag is False else [0, *plain])
    assert 0 not in plain


def test_every_end_token_is_an_end(tmp_path):
    write(tmp_path / "m.gguf", metadata={"tokenizer.ggml.eot_token_id": 3})
    assert read_config(convert_gguf(tmp_path / "m.gguf", tmp_path / "o")).eos_token_ids == (1, 3)


WRONG = {
    "architecture": ({"metadata": {"general.architecture": "gemma3"}}, "'gemma3' is not supported"),
    "missing tensor": ({"change": {"blk.1.ffn_up.weight": None}}, "blk.1.ffn_up.weight is missing"),
    "unknown tensor": ({"change": {"blk.0.x": np.ones(3, np.float32)}}, "'blk.0.x' is not known"),
    "missing key": ({"metadata": {"llama.embedding_length": None}}, "embedding_length' is missing"),
    "wrong type": ({"metadata": {"llama.block_count": "2"}}, "block_count' has the wrong type"),
    "heads a list": ({"metadata": {"llama.attention.head_count_kv": [2, 2]}}, "wrong type"),
    "bool size": ({"metadata": {"llama.block_count": True}}, "wrong type"),
    "zero": ({"metadata": {"llama.attention.head_count": 0}}, "head_count' is 0"),
    "too many layers": ({"metadata": {"llama.block_count": 3}}, "blk.2.attn_norm.weight is mis"),
    "heads": (
        {"metadata": {"llama.attention.head_count": 8}},
        "has 32 rows where heads and head size give 16",
    ),
    "split": ({"metadata": {"split.count": 2}}, "one part of a split file"),
    "rope": ({"metadata": {"llama.rope.scaling.type": "longrope"}}, "'longrope' is not supp"),
    "sentencepiece": ({"metadata": {"tokenizer.ggml.model": "llama"}}, "'llama' is not supported"),
    "pre": ({"style": "tekken"}, "pre-tokenizer 'tekken' is not supported; supported: smollm"),
    "eos": ({"metadata": {"tokenizer.ggml.eos_token_id": 9999}}, "eos_token_id 9999 is outside"),
    "merges": ({"metadata": {"tokenizer.ggml.merges": ["a b", "xx yyy"]}}, "is broken"),
    "types": ({"metadata": {"tokenizer.ggml.token_type": [1, 2]}}, "differ in number"),
    "tokens": ({"metadata": {"tokenizer.ggml.tokens": [1, 2]}}, "must be texts"),
    "alignment": ({"metadata": {"general.alignment": 48}}, "48 is not a power of two"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_supported_says_so(tmp_path, case):
    options, message = WRONG[case]
    if case in ("architecture", "alignment"):
        rewrite_metadata(tmp_path / "m.gguf", options["metadata"])
    else:
        write(tmp_path / "m.gguf", **options)
    with pytest.raises(InputError, match=message) as caught:
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def rewrite_metadata(path, metadata):
    """A file with only these keys: the writer itself would refuse them elsewhere."""
    writer = GGUFWriter(path, metadata.get("general.architecture", "llama"))
    if "general.alignment" in metadata:
        writer.add_uint32("general.alignment", metadata["general.alignment"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_dtype_must_be_known(tmp_path):
    with pytest.raises(InputError, match="dtype 'int4' is not supported; choose from float32"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out", "int4")


def test_missing_and_foreign_files(tmp_path):
    with pytest.raises(InputError, match="no such file or folder"):
        convert(tmp_path / "absent.gguf", tmp_path / "out")
    with pytest.raises(InputError, match="cannot open it: No such file"):
        GGUFFile(tmp_path / "absent.gguf")
    for content, message in ((b"", "only 0 bytes"), (b"x" * 100, "not a GGUF file")):
        (tmp_path / "m.gguf").write_bytes(content)
        with pytest.raises(InputError, match=message):
            GGUFFile(tmp_path / "m.gguf")


def small(path) -> bytes:
    """A whole but small file: tables of every kind of value, and two tensors."""
    writer = GGUFWriter(path, "llama")
    writer.add_array("texts", ["a", "é", ""])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_float32("f", 1.5)
    writer.add_bool("b", True)
    writer.add_int64("i", -1)
    writer.add_tensor("w", np.arange(64, dtype=np.float32).reshape(2, 32))
    writer.add_tensor("q", quantize(np.ones((2, 32), np.float32), Q.Q8_0), raw_dtype=Q.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def read_everything(path):
    file = GGUFFile(path)
    values = {name: file.rows(tensor).copy() for name, tensor in file.tensors.items()}
    file.close()
    return file.metadata, values


def test_the_table_is_read(tmp_path):
    small(tmp_path / "m.gguf")
    metadata, values = read_everything(tmp_path / "m.gguf")
    assert metadata["texts"] == ["a", "é", ""] and metadata["numbers"] == [1, 2, 3]
    assert (metadata["f"], metadata["b"], metadata["i"]) == (1.5, True, -1)
    np.testing.assert_array_equal(values["w"].view(np.float32).reshape(-1), np.arange(64))


def test_every_truncation_is_an_input_error(tmp_path):
    whole = small(tmp_path / "m.gguf")
    used = len(whole) - 28  # the last tensor's padding
    for length in range(used):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        with pytest.raises(InputError):
            read_everything(tmp_path / "cut.gguf")


def test_flipped_bytes_give_an_input_error_or_data_but_no_other_exception(tmp_path):
    """With 64-bit counts and lengths among them, which must cost neither time nor memory."""
    whole = small(tmp_path / "m.gguf")
    table = whole.index(b"\0" * 4 + np.float32(1).tobytes())
    random.seed(9)
    outcomes = {"error": 0, "read": 0}
    for _ in range(2000):
        damaged = bytearray(whole)
        for _ in range(random.choice([1, 1, 3])):
            damaged[random.randrange(table)] = random.randrange(256)
        (tmp_path / "bad.gguf").write_bytes(damaged)
        try:
            read_everything(tmp_path / "bad.gguf")
            outcomes["read"] += 1
        except InputError as error:
            assert "\n" not in str(error)
            outcomes["error"] += 1
    assert min(outcomes.values()) > 100


def test_damaged_models_convert_or_fail_in_one_line(tmp_path):
    write(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    random.seed(10)
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[random.randrange(len(whole) // 8)] = random.randrange(256)
        (tmp_path / "bad.gguf").write_bytes(damaged)
        try:
            out = convert_gguf(tmp_path / "bad.gguf", tmp_path / "out", "float32", force=True)
            Tokenizer.from_folder(out), read_config(out)
        except InputError as error:
            assert "\n" not in str(error)


def test_conversion_is_atomic_and_careful(tmp_path):
    write(tmp_path / "m.gguf")
    out = convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    with pytest.raises(InputError, match="not empty"):
        convert_gguf(tmp_path / "m.gguf", out)
    before = (out / "model.safetensors").read_bytes()
    data = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="truncated"):
        convert_gguf(tmp_path / "m.gguf", out, force=True)
    assert (out / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "out"]


def test_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(converter, "SHARD_BYTES", 100_000)
    expected = write(tmp_path / "m.gguf")
    out = convert_gguf(tmp_path / "m.gguf", tmp_path / "out", "float32")
    assert len(list(out.glob("model-*-of-*.safetensors"))) > 1
    check_weights(out, expected)


@pytest.mark.network
def test_smollm2_equals_transformers_bit_for_bit(smollm2, smollm2_gguf):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = transformers.AutoConfig.from_pretrained(smollm2)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    theirs = load_gguf_checkpoint(smollm2_gguf, return_tensors=True, model_to_load=model)["tensors"]
    with Checkpoint(smollm2) as checkpoint:
        assert len(checkpoint.tensors) == 272 and set(checkpoint.tensors) == set(theirs)
        for info, array in checkpoint.items():
            np.testing.assert_array_equal(np.asarray(array), theirs[info.name].numpy())


@pytest.mark.network
def test_released_tokenizers_survive_the_trip(npm_tokenizer, tmp_path):
    """Qwen3's and Llama 3's own ids, after their vocabulary went through GGUF."""
    backend = Backend.from_file(str(npm_tokenizer / "tokenizer.json"))
    style = "qwen2" if "qwen" in npm_tokenizer.name else "llama-bpe"
    metadata = {"tokenizer.ggml.add_bos_token": False}
    write(tmp_path / "m.gguf", tokenizer=backend, style=style, metadata=metadata)
    ours = Tokenizer.from_folder(convert_gguf(tmp_path / "m.gguf", tmp_path / "out"))
    for text in TEXTS:
        assert ours.encode(text) == backend.encode(text).ids
