"""OpenAI's requests as ours: fields checked, one clear message for what is wrong."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from .sampling import Sampling
from .tokenizer import Tokenizer

MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20


class ApiError(Exception):
    """A request that cannot be served: HTTP status, OpenAI's type and code, and the message."""

    def __init__(self, status: int, message: str, code: str | None = None, param=None):
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
        self.body = {"message": message, "type": kind, "param": param, "code": code}


@dataclass(frozen=True)
class Call:
    """A request's content: prompt, sampling, and what shape the answer has."""

    ids: list[int]
    rules: Sampling
    max_tokens: int
    stop: tuple[str, ...]
    seed: int | None
    logprobs: int | None
    stream: bool
    usage: bool
    chat: bool


def number(body: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    """A number of the body, None where it is absent or null."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not low <= value <= high:
        raise ApiError(400, f"{name} must be a number{_span(low, high)}", param=name)
    return float(value)


def count(body: Mapping[str, Any], name: str, low=-math.inf, high=math.inf) -> int | None:
    """A whole number of the body, None where it is absent or null."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise ApiError(400, f"{name} must be a whole number{_span(low, high)}", param=name)
    return value


def _span(low: float, high: float) -> str:
    if high == math.inf:
        return "" if low == -math.inf else f" of at least {low:g}"
    return f" from {low:g} to {high:g}"


def flag(body: Mapping[str, Any], name: str) -> bool:
    """Whether a field of the request holds: true, false or absent; ApiError for another value."""
    value = body.get(name)
    if value is not None and type(value) is not bool:
        raise ApiError(400, f"{name} must be true or false", param=name)
    return bool(value)


def read_call(body: Any, chat: bool, model, tokenizer: Tokenizer, most_tokens: int) -> Call:
    """The body of POST /v1/chat/completions or /v1/completions. Raises ApiError."""
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    if (count(body, "n", 1, 128) or 1) != 1 or (count(body, "best_of") or 1) != 1:
        raise ApiError(400, "one choice a request is served: leave out n", param="n")
    ids = _prompt_ids(body, chat, tokenizer)
    limit = model.args.max_position_embeddings
    if len(ids) >= limit:
        raise ApiError(
            400,
            f"the prompt has {len(ids)} tokens, but the model's context is {limit}: shorten it",
            code="context_length_exceeded",
            param="messages" if chat else "prompt",
        )
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object", param="stream_options")
    return Call(
        ids=ids,
        rules=_rules(body, model),
        max_tokens=min(_max_tokens(body, most_tokens), limit - len(ids)),
        stop=_stops(body),
        seed=count(body, "seed", 0, 2**64 - 1),
        logprobs=_logprobs(body, chat),
        stream=flag(body, "stream"),
        usage=flag(options, "include_usage"),
        chat=chat,
    )


def _max_tokens(body: Mapping[str, Any], most: int) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        wanted = count(body, name, 1)
        if wanted is not None:
            if wanted > most:
                raise ApiError(400, f"{name}: this server gives at most {most}", param=name)
            return wanted
    return min(512, most)


def _rules(body: Mapping[str, Any], model) -> Sampling:
    given = {
        "temperature": number(body, "temperature", 0, 1e6),
        "top_p": number(body, "top_p", 0, 1),
        "top_k": count(body, "top_k", 0),
        "min_p": number(body, "min_p", 0, 1),
        "repetition_penalty": number(body, "repetition_penalty", 1e-6, 1e6),
        "presence_penalty": number(body, "presence_penalty", -2, 2),
        "frequency_penalty": number(body, "frequency_penalty", -2, 2),
        "logit_bias": _biases(body, model.args.vocab_size),
    }
    given = {name: value for name, value in given.items() if value is not None}
    try:
        return Sampling(**{**model.generation_defaults, **given})
    except InputError as error:
        raise ApiError(400, str(error)) from None


def _biases(body: Mapping[str, Any], vocab: int) -> dict[int, float] | None:
    given = body.get("logit_bias")
    if given is None:
        return None
    try:
        found = {int(token): float(bias) for token, bias in given.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise ApiError(400, "logit_bias maps token ids to numbers", param="logit_bias") from None
    if not all(0 <= token < vocab and abs(bias) <= 100 for token, bias in found.items()):
        message = f"logit_bias: tokens are below {vocab}, biases from -100 to 100"
        raise ApiError(400, message, param="logit_bias")
    return found


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    given = body.get("stop")
    stops = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise ApiError(400, f"stop is a text or a list of up to {MAX_STOPS}", param="stop")
    if not all(isinstance(stop, str) and stop for stop in stops):
        raise ApiError(400, "a stop string is a text that is not empty", param="stop")
    return tuple(stops)


def _logprobs(body: Mapping[str, Any], chat: bool) -> int | None:
    if not chat:
        return count(body, "logprobs", 0, MAX_TOP_LOGPROBS)
    wanted = count(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if not flag(body, "logprobs"):
        if wanted:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        return None
    return wanted or 0


def _prompt_ids(body: Mapping[str, Any], chat: bool, tokenizer: Tokenizer) -> list[int]:
    try:
        ids = _chat_ids(body, tokenizer) if chat else _plain_ids(body, tokenizer)
    except InputError as error:
        raise ApiError(400, str(error), param="messages" if chat else "prompt") from None
    if not ids:
        raise ApiError(400, "the prompt is empty", param="messages" if chat else "prompt")
    return ids


def _plain_ids(body: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    if isinstance(prompt, list) and all(type(i) is int for i in prompt):
        if all(0 <= i < tokenizer.vocab_size for i in prompt):
            return prompt
        raise ApiError(400, "prompt: a token id outside the vocabulary", param="prompt")
    raise ApiError(400, "prompt is one text, or one list of token ids", param="prompt")


def _chat_ids(body: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages is a list of at least one message", param="messages")
    variables = body.get("chat_template_kwargs") or {}
    tools = body.get("tools") or None
    if not isinstance(variables, dict) or not (tools is None or isinstance(tools, list)):
        name = "tools" if isinstance(variables, dict) else "chat_template_kwargs"
        raise ApiError(400, "chat_template_kwargs is an object and tools a list", param=name)
    reserved = {"messages", "tools", "add_generation_prompt"} & variables.keys()
    if reserved:
        raise ApiError(
            400,
            f"chat_template_kwargs cannot set {min(reserved)}",
            param="chat_template_kwargs",
        )
    plain = [_message(message) for message in messages]
    return tokenizer.encode_chat(plain, tools=tools, **variables)


def _message(message: Any) -> dict[str, Any]:
    """A message whose content is text: of a list of parts, the text parts' joined."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ApiError(400, "a message is an object with a role", param="messages")
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
            raise ApiError(400, "of a message's parts only text is served", param="messages")
        content = "".join(part["text"] for part in content)
    if content is not None and not isinstance(content, str):
        raise ApiError(400, "a message's content is text", param="messages")
    return {**message, "content": content}
