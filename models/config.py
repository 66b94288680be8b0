"""config.json and generation_config.json, checked and brought to one set of field names.

Hugging Face files differ by age: `torch_dtype` became `dtype`, `rope_theta` and `rope_scaling`
became `rope_parameters`, multimodal models nest the text model in `text_config`. `read_config`
hands out one flat mapping in the names below, whatever the file's age; a model's own dataclass is
filled from it by `fill`. Nothing of a configuration is ever executed.
"""

import dataclasses
import json
import math
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..errors import InputError

MAX_JSON_BYTES = 64 << 20
# Generous multiples of the largest published models. A config beyond them is damaged or hostile,
# and would otherwise end in an allocation that takes the machine down.
LIMITS = {
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_hidden_layers": 4096,
    "num_attention_heads": 1 << 16,
    "num_key_value_heads": 1 << 16,
    "head_dim": 1 << 16,
    "vocab_size": 1 << 26,
    "max_position_embeddings": 1 << 30,
    "sliding_window": 1 << 30,
    "moe_intermediate_size": 1 << 22,
    "shared_expert_intermediate_size": 1 << 22,
    "num_experts": 1 << 14,
    "num_local_experts": 1 << 14,
    "linear_num_key_heads": 1 << 12,
    "linear_num_value_heads": 1 << 12,
    "linear_key_head_dim": 1 << 12,
    "linear_value_head_dim": 1 << 12,
    "linear_conv_kernel_dim": 1 << 10,
}
MAX_INT = 2**31 - 1
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
# transformers 5.24's class defaults where they are not those of all models and matter to a field
# that is derived here; files may leave them out.
DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "head_dim": 256,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window": 4096,
    },
    "gpt_oss": {"head_dim": 64, "rope_theta": 150_000.0, "sliding_window": 128},
    "mistral": {"sliding_window": 4096},
    "mixtral": {"rope_theta": 1e6},
    "qwen3": {"head_dim": 128},
    "qwen3_5": {"head_dim": 256, "partial_rotary_factor": 0.25},
    "qwen3_5_moe": {"head_dim": 256, "partial_rotary_factor": 0.25},
    "qwen3_next": {"head_dim": 256, "partial_rotary_factor": 0.25},
    "smollm3": {"rope_theta": 2e6},
}

T = TypeVar("T")


def read_text(path: Path, most: int = MAX_JSON_BYTES) -> str:
    """The text in `path`, of at most `most` bytes. Raises InputError naming the file."""
    try:
        size = path.stat().st_size
        if size > most:
            raise InputError(f"{path}: {size} bytes are too many for a settings file")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; download it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot read it: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; download it again") from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises InputError naming the file for anything else."""
    text = read_text(path)
    try:
        data = json.loads(text)
    except RecursionError:
        raise InputError(f"{path}: nested too deeply; download it again") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error}); download it again") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: not a JSON object; download it again")
    return data


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding, in one form for old and new files.

    `theta` is the base; `factor` stretches positions; the low/high_freq_factor pair belongs to
    llama3, the beta and mscale pairs to yarn (arXiv:2309.00071). `partial_rotary_factor` is the
    rotated share of a head.
    """

    rope_type: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    max_position_embeddings: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    partial_rotary_factor: float = 1.0
    mrope_section: tuple[int, ...] | None = None

    def inverse_frequencies(self, head_dim: int, length: int = 0) -> tuple[np.ndarray, float]:
        """float32 [rotated / 2] inverse frequencies, and the factor on cos and sin.

        `length` matters to dynamic only: past max_position_embeddings it raises the base.
        """
        dim = int(head_dim * self.partial_rotary_factor)
        exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
        theta = self.theta
        if self.rope_type == "dynamic" and length > self.max_position_embeddings:
            stretch = self.factor * length / self.max_position_embeddings - (self.factor - 1)
            theta *= stretch ** (dim / (dim - 2))
        inverse = np.float32(1) / np.float32(theta) ** exponents
        if self.rope_type == "linear":
            return inverse / np.float32(self.factor), 1.0
        if self.rope_type == "llama3":
            return self._llama3(inverse), 1.0
        if self.rope_type == "yarn":
            return self._yarn(inverse, dim), self._yarn_attention_factor()
        return inverse, 1.0

    def _llama3(self, inverse: np.ndarray) -> np.ndarray:
        """Long waves slowed by `factor`, short ones untouched, a linear blend in between."""
        original = self.original_max_position_embeddings
        turns = original / (2 * math.pi / inverse)
        span = self.high_freq_factor - self.low_freq_factor
        keep = np.clip((turns - self.low_freq_factor) / span, 0, 1).astype(np.float32)
        return (1 - keep) * inverse / np.float32(self.factor) + keep * inverse

    def _yarn(self, inverse: np.ndarray, dim: int) -> np.ndarray:
        """Interpolated below, extrapolated above, ramped between beta_slow and beta_fast turns."""

        def index_of(turns: float) -> float:
            period = self.original_max_position_embeddings / (turns * 2 * math.pi)
            return dim * math.log(period) / (2 * math.log(self.theta))

        low, high = index_of(self.beta_fast), index_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        ramp = (np.arange(len(inverse), dtype=np.float32) - low) / max(high - low, 0.001)
        keep = 1 - np.clip(ramp, 0, 1).astype(np.float32)
        return inverse / np.float32(self.factor) * (1 - keep) + inverse * keep

    def _yarn_attention_factor(self) -> float:
        def mscale(weight: float) -> float:
            return 0.1 * weight * math.log(self.factor) + 1 if self.factor > 1 else 1.0

        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return mscale(self.mscale) / mscale(self.mscale_all_dim)
        return mscale(1.0)


@dataclass(frozen=True)
class GenerationConfig:
    """Sampling defaults of generation_config.json; None where the file does not say."""

    do_sample: bool | None = None
    temperature: float | None = field(default=None, metadata={"low": 0.0, "high": 1e6})
    top_k: int | None = field(default=None, metadata={"low": 0})
    top_p: float | None = field(default=None, metadata={"low": 0.0, "high": 1.0})
    min_p: float | None = field(default=None, metadata={"low": 0.0, "high": 1.0})
    repetition_penalty: float | None = field(default=None, metadata={"low": 1e-6, "high": 1e6})
    max_new_tokens: int | None = None


@dataclass(frozen=True)
class ModelConfig:
    """A model folder's configuration. `values` is flat, checked and in the new field names.

    Always there: num_key_value_heads and head_dim (where heads and hidden_size are given), `rope`
    (RopeConfig), `rope_local` (that of sliding layers, or None where all have one), `dtype` (str or
    None). `model_type` is the text model's, without the ending _text where it names the same
    architecture. `eos_token_ids` is the union of config.json's and generation_config.json's, in
    that order.
    """

    path: Path
    model_type: str
    values: Mapping[str, Any]
    generation: GenerationConfig
    eos_token_ids: tuple[int, ...]
    raw: Mapping[str, Any]

    def fill(self, cls: type[T]) -> T:
        """An instance of dataclass `cls` from `values`; see `fill`."""
        return fill(cls, self.values, self.path)


def read_config(folder: str | os.PathLike[str]) -> ModelConfig:
    """The checked configuration of a model folder. Raises InputError naming file and field."""
    folder = Path(folder)
    path = folder / "config.json"
    if folder.is_file():
        raise InputError(
            f"{folder}: a file, not a model folder; from a GGUF file `torchmlx convert FILE.gguf "
            "OUT` makes one"
        )
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; check the path")
    if not path.is_file():
        raise InputError(f"{path}: no such file, so this is not a Hugging Face model folder")
    raw = read_json(path)
    values = normalise(raw, path)
    generation_path = folder / "generation_config.json"
    generation = read_json(generation_path) if generation_path.is_file() else {}
    eos = [
        *_token_ids(values, "eos_token_id", path),
        *_token_ids(generation, "eos_token_id", generation_path),
    ]
    return ModelConfig(
        path=path,
        model_type=_take(values, "model_type", str, path),
        values=types.MappingProxyType(values),
        generation=fill(GenerationConfig, generation, generation_path),
        eos_token_ids=tuple(dict.fromkeys(eos)),
        raw=types.MappingProxyType(raw),
    )


def normalise(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """One flat mapping in today's names from a config.json of any age. `path` is for messages."""
    nested = raw.get("text_config")
    if nested is not None and not isinstance(nested, dict):
        raise _wrong(path, "text_config", "an object", nested)
    values = {key: value for key, value in raw.items() if key != "text_config"}
    values.update({key: value for key, value in (nested or {}).items() if value is not None})
    values["model_type"] = _model_type(raw, nested, path)
    for name, default in DEFAULTS.get(values["model_type"], {}).items():
        values.setdefault(name, default)  # null is a value: no sliding window
    dtype = values.pop("torch_dtype", None)
    values["dtype"] = _dtype_name(values.get("dtype") or dtype, path)
    # transformers 5 writes num_local_experts where qwen3_moe's older files say num_experts.
    for new, old in (("num_experts", "num_local_experts"), ("num_local_experts", "num_experts")):
        if values.get(new) is None and values.get(old) is not None:
            values[new] = values[old]
    experts, chosen = values.get("num_experts"), values.get("num_experts_per_tok")
    if isinstance(experts, int) and isinstance(chosen, int) and chosen > experts > 0:
        raise InputError(
            f"{path}: num_experts_per_tok {chosen} is more than the {experts} experts; "
            "download it again"
        )
    _complete_heads(values, path)
    values["rope"], values["rope_local"] = _ropes(values, path)
    return values


def _model_type(raw: Mapping[str, Any], nested: Mapping[str, Any] | None, path: Path) -> str:
    """The text model's type; a multimodal file's own type names the whole."""
    name = (nested or {}).get("model_type") or raw.get("model_type") or ""
    if not isinstance(name, str):
        raise _wrong(path, "model_type", "a string", name)
    return name.removesuffix("_text") if name.startswith("qwen3_5") else name


def _complete_heads(values: dict[str, Any], path: Path) -> None:
    """Fill in num_key_value_heads and head_dim, which older files leave out."""
    if values.get("num_attention_heads") is None:
        return
    heads = _take(values, "num_attention_heads", int, path)
    if values.get("num_key_value_heads") is None:
        values["num_key_value_heads"] = heads
    groups = _take(values, "num_key_value_heads", int, path)
    if heads % groups:
        raise InputError(
            f"{path}: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {groups}; download it again"
        )
    if values.get("head_dim") is None and values.get("hidden_size") is not None:
        hidden = _take(values, "hidden_size", int, path)
        if hidden % heads:
            raise InputError(
                f"{path}: hidden_size {hidden} is not a multiple of num_attention_heads {heads} "
                "and head_dim is not given; download it again"
            )
        values["head_dim"] = hidden // heads


def _ropes(values: Mapping[str, Any], path: Path) -> tuple[RopeConfig, RopeConfig | None]:
    """What the layers turn by, and what sliding layers turn by where it is something else.

    From rope_parameters (new; perhaps one object per layer type), or rope_theta, rope_scaling and
    rope_local_base_freq (old).
    """
    found: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        part = values.get(name)
        if part is not None and not isinstance(part, dict):
            raise _wrong(path, name, "an object", part)
        found.update(part or {})
    kinds = {kind: part for kind, part in found.items() if isinstance(part, dict)}
    if kinds:
        unknown = kinds.keys() - {"full_attention", "sliding_attention"}
        if unknown or "full_attention" not in kinds:
            raise InputError(f"{path}: rope parameters for {', '.join(map(ascii, kinds))[:60]}")
        found = kinds["full_attention"]
    local = kinds.get("sliding_attention")
    if local is None and values.get("rope_local_base_freq") is not None:
        local = {"rope_theta": values["rope_local_base_freq"]}
    main = _rope(found, values, path)
    return main, None if local is None else _rope(local, values, path)


def _rope(found: dict[str, Any], values: Mapping[str, Any], path: Path) -> RopeConfig:
    """RopeConfig from its object; what that leaves out is looked up beside it."""
    found = dict(found)
    kind = found.get("rope_type") or found.get("type") or "default"
    # Qwen2-VL's old spelling; the sections themselves are in mrope_section.
    kind = "default" if kind == "mrope" else kind
    if kind not in ROPE_TYPES:
        raise InputError(
            f"{path}: unsupported rope type {ascii(kind)[:60]}; supported: {', '.join(ROPE_TYPES)}"
        )
    for name, old in (("theta", "rope_theta"), ("partial_rotary_factor", "partial_rotary_factor")):
        value = found.get(old) if found.get(old) is not None else values.get(old)
        if value is not None:
            found[name] = value
    # Left out, the extent means "as trained", which is the old default of transformers too.
    extent = values.get("max_position_embeddings")
    for name in ("original_max_position_embeddings", "max_position_embeddings"):
        if found.get(name) is None and extent is not None:
            found[name] = extent
    if kind != "default":
        _require_scaling(kind, found, path)
    rope = fill(RopeConfig, {**found, "rope_type": kind}, path)
    _check_rope(rope, path)
    if values.get("head_dim") is not None:
        _check_width(rope, _take(values, "head_dim", int, path), path)
    return rope


def _require_scaling(kind: str, found: Mapping[str, Any], path: Path) -> None:
    needed = ["factor"]
    if kind == "llama3":
        needed += ["low_freq_factor", "high_freq_factor"]
    if kind in ("dynamic", "yarn", "llama3"):
        needed += ["original_max_position_embeddings"]
    for name in needed:
        if found.get(name) is None:
            raise InputError(f"{path}: rope type {kind} needs the field {name!r}")


def _check_rope(rope: RopeConfig, path: Path) -> None:
    """The relations that the formulas divide by."""
    if not 1 < rope.theta < 1e30:
        raise InputError(f"{path}: rope_theta must be greater than 1, not {rope.theta}")
    if rope.factor <= 0 or rope.low_freq_factor <= 0:
        raise InputError(f"{path}: rope factors must be positive")
    if rope.high_freq_factor <= rope.low_freq_factor:
        raise InputError(f"{path}: high_freq_factor must be greater than low_freq_factor")
    if not 0 < rope.partial_rotary_factor <= 1:
        raise InputError(f"{path}: partial_rotary_factor must be in (0, 1]")
    if rope.beta_fast <= 0 or rope.beta_slow <= 0:
        raise InputError(f"{path}: beta_fast and beta_slow must be positive")


def _check_width(rope: RopeConfig, head_dim: int, path: Path) -> None:
    """At least a pair of dimensions turns; dynamic scaling divides by those beyond the first."""
    least = 4 if rope.rope_type == "dynamic" else 2
    if int(head_dim * rope.partial_rotary_factor) < least:
        raise InputError(
            f"{path}: of head_dim {head_dim} by partial_rotary_factor "
            f"{rope.partial_rotary_factor:g}, too few dimensions turn"
        )


def _dtype_name(value: object, path: Path) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise _wrong(path, "dtype", "a string", value)
    return value.removeprefix("torch.")


def _token_ids(values: Mapping[str, Any], name: str, path: Path) -> list[int]:
    """An id, a list of ids or null, as a list."""
    value = values.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(i) is not int or not 0 <= i <= MAX_INT for i in ids):
        raise _wrong(path, name, "a token id or a list of them", value)
    return ids


def fill(cls: type[T], values: Mapping[str, Any], path: Path) -> T:
    """An instance of dataclass `cls`, each field taken from `values` and checked by its annotation.

    Understood: int, float, bool, str, RopeConfig, tuple[X, ...], dict, each also `| None`. Integers
    are positive and at most LIMITS[name], floats finite; a field's metadata may give other bounds
    as `low` and `high`. A missing or null field takes its default; without one, InputError.
    """
    hints = typing.get_type_hints(cls)
    found = {}
    for spec in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
        required = spec.default is dataclasses.MISSING and (
            spec.default_factory is dataclasses.MISSING
        )
        annotation, optional = _strip_none(hints[spec.name])
        value = values.get(spec.name)
        if value is None:
            if required and not (optional and spec.name in values):
                raise InputError(f"{path}: field {spec.name!r} is missing; download it again")
            if required:
                found[spec.name] = None
            continue
        found[spec.name] = _check(value, annotation, spec.name, path, spec.metadata)
    return cls(**found)


def _strip_none(annotation: Any) -> tuple[Any, bool]:
    """`X | None` as (X, True)."""
    options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    rest = [option for option in options if option is not type(None)]
    return (rest[0] if len(rest) == 1 else annotation), len(rest) < len(options)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _take(values: Mapping[str, Any], name: str, kind: type[T], path: Path) -> T:
    """A required scalar field."""
    if values.get(name) in (None, ""):
        raise InputError(f"{path}: field {name!r} is missing; download it again")
    return _check(values[name], kind, name, path, {})


def _check(value: Any, kind: Any, name: str, path: Path, bounds: Mapping[str, Any]) -> Any:
    """`value` as `kind`, or InputError saying what the field must be."""
    if typing.get_origin(kind) is tuple or kind is tuple:
        if not isinstance(value, (list, tuple)):
            raise _wrong(path, name, "a list", value)
        inner = (typing.get_args(kind) or (Any,))[0]
        return tuple(_check(item, inner, name, path, bounds) for item in value)
    if kind is int:
        return _check_int(value, name, path, bounds)
    if kind is float:
        return _check_float(value, name, path, bounds)
    plain = typing.get_origin(kind) or kind
    if plain is not Any and not isinstance(value, plain):
        words = {bool: "true or false", str: "a string", dict: "an object", list: "a list"}
        raise _wrong(path, name, words.get(plain) or str(plain), value)
    return value


def _check_int(value: Any, name: str, path: Path, bounds: Mapping[str, Any]) -> int:
    low, high = bounds.get("low", 1), bounds.get("high", LIMITS.get(name, MAX_INT))
    # Some writers store whole numbers as 64.0.
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not low <= value <= high:
        raise _wrong(path, name, f"an integer from {low} to {high}", value)
    return value


def _check_float(value: Any, name: str, path: Path, bounds: Mapping[str, Any]) -> float:
    low, high = bounds.get("low", -math.inf), bounds.get("high", math.inf)
    if type(value) not in (int, float) or abs(value) > 1e300 or not low <= value <= high:
        span = "" if low == -math.inf else f" from {low:g}" + f" to {high:g}" * (high < math.inf)
        raise _wrong(path, name, f"a finite number{span}", value)
    return float(value)


def _wrong(path: Path, name: str, expected: str, value: object) -> InputError:
    text = ascii(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return InputError(f"{path}: field {name!r} must be {expected}, not {text}")
