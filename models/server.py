"""An HTTP server that speaks OpenAI's protocol, from the standard library alone.

POST /v1/chat/completions and /v1/completions, GET /v1/models and /health. A thread a connection
parses and writes; one engine (batching.py) computes for all of them.
"""

import json
import queue
import select
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .api import ApiError, Call, read_call
from .batching import BusyError, Engine, Event, Request
from .tokenizer import Tokenizer

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Limits:
    """What a client may ask for. Seconds: without a byte from or to it, and for a whole answer."""

    body_bytes: int = 8 << 20
    max_tokens: int = 4096
    idle_seconds: float = 60.0
    answer_seconds: float = 600.0


class Gone(Exception):
    """The client has closed its connection."""


class Server(ThreadingHTTPServer):
    """Serves `model` as `name` at (host, port); port 0 picks a free one, see `server_port`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address, name: str, model, tokenizer: Tokenizer, limits=None, **engine: Any):
        self.name, self.model, self.tokenizer = name, model, tokenizer
        self.limits = limits or Limits()
        self.engine = Engine(model, tokenizer, **engine)
        self.started = int(time.time())
        try:
            super().__init__(address, Handler)
        except OSError:
            self.engine.close()
            raise

    def server_close(self) -> None:
        super().server_close()
        self.engine.close()

    def handle_error(self, request, client_address) -> None:
        """A broken connection is no news; anything else has been answered with status 500."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    server_version = "torchmlx"

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.limits.idle_seconds)

    def log_message(self, format: str, *args) -> None:
        pass

    def do_GET(self) -> None:
        engine = self.server.engine
        if self.path == "/health":
            status = {"status": "ok", "running": engine.running, "waiting": engine.waiting}
            self._send(200, status)
        elif self.path in ("/v1/models", f"/v1/models/{self.server.name}"):
            entry = {
                "id": self.server.name,
                "object": "model",
                "created": self.server.started,
                "owned_by": "torchmlx",
            }
            whole = self.path == "/v1/models"
            self._send(200, {"object": "list", "data": [entry]} if whole else entry)
        elif self.path in (CHAT, PLAIN):
            self._fail(ApiError(405, f"{self.path} takes POST"))
        else:
            self._fail(ApiError(404, f"no {self.path} here"))

    def do_POST(self) -> None:
        try:
            if self.path not in (CHAT, PLAIN):
                raise ApiError(404, f"no {self.path} here: there are {CHAT} and {PLAIN}")
            self._answer(self._call())
        except ApiError as error:
            self._fail(error)
        except (Gone, OSError):
            self.close_connection = True
        # A fault of ours must not look like a broken connection; a panic in tokenizers' Rust code
        # is no Exception.
        except BaseException as error:
            self._fail(ApiError(500, f"{type(error).__name__}: {error}"))

    def _call(self) -> Call:
        body = self._body()
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            raise ApiError(400, "the body is not valid JSON") from None
        server = self.server
        asked = data.get("model") if isinstance(data, dict) else None
        if asked not in (None, server.name, "default_model"):
            raise ApiError(
                404, f"this server has the model {server.name!r}", "model_not_found", "model"
            )
        chat = self.path == CHAT
        return read_call(data, chat, server.model, server.tokenizer, server.limits.max_tokens)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.close_connection = True
            raise ApiError(411, "the request needs a Content-Length")
        if int(length) > self.server.limits.body_bytes:
            self.close_connection = True
            most = self.server.limits.body_bytes
            raise ApiError(413, f"a body of {length} bytes: this server takes at most {most}")
        return self.rfile.read(int(length))

    def _answer(self, call: Call) -> None:
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        request = Request(
            *(call.ids, events.put, call.rules, call.max_tokens),
            *(call.stop, call.seed, call.logprobs),
        )
        try:
            self.server.engine.submit(request)
        except BusyError as error:
            raise ApiError(429, str(error), "rate_limit_exceeded") from None
        try:
            answer = Answer(self.server, call, request)
            if call.stream:
                self._stream(answer, self._events(events))
            else:
                self._send(200, answer.whole(list(self._events(events))))
        finally:
            request.cancelled = True

    def _events(self, events: "queue.SimpleQueue[Event]") -> Iterator[Event]:
        """The request's events, until the last, the time limit or the client's leaving."""
        deadline = time.monotonic() + self.server.limits.answer_seconds
        while True:
            try:
                event = events.get(timeout=0.5)
            except queue.Empty:
                event = None
            self._check_client()
            if event is None:
                if time.monotonic() > deadline:
                    raise ApiError(504, "the answer took longer than this server allows")
                continue
            if event.finish_reason == "error":
                raise ApiError(500, event.text)
            yield event
            if event.finish_reason:
                return
            if time.monotonic() > deadline:
                raise ApiError(504, "the answer took longer than this server allows")

    def _check_client(self) -> None:
        # poll, for select knows no descriptor above 1023
        watch = select.poll()
        watch.register(self.connection, select.POLLIN)
        if watch.poll(0) and not self.connection.recv(1, socket.MSG_PEEK):
            raise Gone

    def _stream(self, answer: "Answer", events: Iterator[Event]) -> None:
        """Server-sent events; an error after the first is one more of them."""
        first = next(events)
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for chunk in answer.chunks(first, events):
                self._event(chunk)
        except ApiError as error:
            self._event({"error": error.body})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, data: dict) -> None:
        self.wfile.write(b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n")
        self.wfile.flush()

    def _fail(self, error: ApiError) -> None:
        self._send(error.status, {"error": error.body})

    def _send(self, status: int, data: dict) -> None:
        body = json.dumps(data, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "1")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


class Answer:
    """OpenAI's objects for one request."""

    def __init__(self, server: Server, call: Call, request: Request):
        self.call, self.request, self.tokenizer = call, request, server.tokenizer
        kind = "chatcmpl" if call.chat else "cmpl"
        self.base = {
            "id": f"{kind}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": server.name,
        }

    def whole(self, events: list[Event]) -> dict:
        text = "".join(event.text for event in events)
        if self.call.chat:
            content: dict = {"message": {"role": "assistant", "content": text}}
        else:
            content = {"text": text}
        choice = {"index": 0, **content, "finish_reason": events[-1].finish_reason}
        choice["logprobs"] = self._logprobs(events)
        kind = "chat.completion" if self.call.chat else "text_completion"
        usage = self._usage(len(events))
        return {**self.base, "object": kind, "choices": [choice], "usage": usage}

    def chunks(self, first: Event, rest: Iterator[Event]) -> Iterator[dict]:
        kind = "chat.completion.chunk" if self.call.chat else "text_completion"
        base = {**self.base, "object": kind}
        if self.call.usage:
            base["usage"] = None
        count, event = 0, first
        while True:
            count += 1
            delta: dict = {"content": event.text}
            if count == 1:
                delta = {"role": "assistant", **delta}
            content = {"delta": delta} if self.call.chat else {"text": event.text}
            choice = {"index": 0, **content, "finish_reason": event.finish_reason}
            choice["logprobs"] = self._logprobs([event])
            yield {**base, "choices": [choice]}
            if event.finish_reason:
                break
            event = next(rest)
        if self.call.usage:
            yield {**base, "choices": [], "usage": self._usage(count)}

    def _usage(self, count: int) -> dict:
        prompt = len(self.call.ids)
        details = {"cached_tokens": self.request.cached_tokens}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": count,
            "total_tokens": prompt + count,
            "prompt_tokens_details": details,
        }

    def _logprobs(self, events: list[Event]) -> dict | None:
        if self.call.logprobs is None:
            return None
        if self.call.chat:
            return {"content": [self._entry(e) for e in events], "refusal": None}
        texts = [self.tokenizer.decode([e.token]) for e in events]
        top = [{self.tokenizer.decode([t]): p for t, p in e.top} for e in events]
        return {
            "tokens": texts,
            "token_logprobs": [e.logprob for e in events],
            "top_logprobs": top,
        }

    def _entry(self, event: Event) -> dict:
        pairs = [(event.token, event.logprob), *event.top]
        texts = [self.tokenizer.decode([token]) for token, _ in pairs]
        entries = [
            {"token": text, "logprob": p, "bytes": list(text.encode())}
            for text, (_, p) in zip(texts, pairs, strict=True)
        ]
        return {**entries[0], "top_logprobs": entries[1:]}
