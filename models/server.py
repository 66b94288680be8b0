"""An HTTP server that speaks OpenAI's protocol, from the standard library alone.

POST /v1/chat/completions and /v1/completions, GET /v1/models and /health. A thread a connection
parses and writes; one engine (batching.py) computes for all of them.
"""

import io
import json
import queue
import re
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from ..errors import InputError
from .api import ApiError, Call, read_call
from .batching import BusyError, Engine, Event, Request, describe
from .tokenizer import Tokenizer

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Limits:
    """What a client may ask for. Seconds: between two requests and for what is written at a time;
    for a whole request, from its first byte on; and for a whole answer."""

    body_bytes: int = 8 << 20
    max_tokens: int = 4096
    connections: int = 512
    idle_seconds: float = 60.0
    request_seconds: float = 60.0
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
        self._places = threading.Semaphore(self.limits.connections)
        try:
            super().__init__(address, Handler)
        except OSError:
            self.engine.close()
            raise

    def process_request(self, request, client_address) -> None:
        """Start a connection's thread, or refuse a connection too many."""
        if not self._places.acquire(blocking=False):
            threading.Thread(target=self._refuse, args=(request,), daemon=True).start()
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread: process_request_thread will not give the place back
            self._places.release()
            raise

    def process_request_thread(self, request, client_address) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def _refuse(self, request: socket.socket) -> None:
        """Status 503, and a second for the client to hear it: a reset would overtake it."""
        message = f"more than {self.limits.connections} connections; try again later"
        body = json.dumps({"error": ApiError(503, message).body})
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
        )
        inflow = Inflow(request, 1.0, 1.0)
        try:
            request.sendall((head + body).encode())
            request.shutdown(socket.SHUT_WR)
            while inflow.readinto(bytearray(1 << 16)):
                pass
        except OSError:
            pass
        finally:
            self.close_request(request)

    def server_close(self) -> None:
        super().server_close()
        self.engine.close()

    def handle_error(self, request, client_address) -> None:
        """A broken connection is no news; anything else has been answered with status 500."""


class Inflow(io.RawIOBase):
    """What a connection receives: `idle` seconds are for a request's first bytes, `whole` from them
    on for all of it. The connection's own timeout is of what it sends."""

    def __init__(self, connection: socket.socket, idle: float, whole: float):
        self.connection, self.idle, self.whole = connection, idle, whole
        self.deadline: float | None = None
        connection.settimeout(idle)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        wait = self.idle if self.deadline is None else self.deadline - time.monotonic()
        self.connection.settimeout(max(wait, 1e-3))  # 0 would mean not to wait at all
        try:
            count = self.connection.recv_into(buffer)
        finally:
            self.connection.settimeout(self.idle)
        if self.deadline is None:
            self.deadline = time.monotonic() + self.whole
        elif time.monotonic() > self.deadline:
            raise TimeoutError
        return count


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = default_request_version = "HTTP/1.1"
    server_version = "torchmlx"

    def setup(self) -> None:
        super().setup()
        limits = self.server.limits
        self.inflow = Inflow(self.connection, limits.idle_seconds, limits.request_seconds)
        self.rfile = io.BufferedReader(self.inflow)

    def log_message(self, format: str, *args) -> None:
        pass

    def handle_one_request(self) -> None:
        self.inflow.deadline = None
        super().handle_one_request()

    def send_error(self, code: int, message: str | None = None, explain=None) -> None:
        """What http.server refuses by itself, as OpenAI's object too."""
        self.close_connection = True
        self._fail(ApiError(code, message or self.responses[code][0]))

    def do_GET(self) -> None:
        self._serve(self._tell)

    do_HEAD = do_GET  # noqa: N815 - http.server's naming

    def do_POST(self) -> None:
        self._serve(lambda path, body: self._answer(self._call(path, body)))

    def _serve(self, answer: Callable[[str, bytes], None]) -> None:
        """Read the request's body, without which the next request would begin in it, and answer."""
        try:
            answer(unquote(self.path.partition("?")[0]), self._body())
        except (Gone, OSError):
            self.close_connection = True
        # A fault of ours must not look like a broken connection; a panic in tokenizers' Rust code
        # is no Exception.
        except BaseException as error:
            self._fail(_as_answer(error))

    def _tell(self, path: str, body: bytes) -> None:
        """What a GET asks for."""
        engine = self.server.engine
        if path == "/health":
            status = {"status": "ok", "running": engine.running, "waiting": engine.waiting}
            self._send(200, status)
        elif path in ("/v1/models", f"/v1/models/{self.server.name}"):
            entry = {
                "id": self.server.name,
                "object": "model",
                "created": self.server.started,
                "owned_by": "torchmlx",
            }
            whole = path == "/v1/models"
            self._send(200, {"object": "list", "data": [entry]} if whole else entry)
        elif path in (CHAT, PLAIN):
            raise ApiError(405, f"{path} takes POST")
        else:
            raise ApiError(404, f"no {path} here")

    def _call(self, path: str, body: bytes) -> Call:
        if path not in (CHAT, PLAIN):
            raise ApiError(404, f"no {path} here: there are {CHAT} and {PLAIN}")
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
        return read_call(
            data, path == CHAT, server.model, server.tokenizer, server.limits.max_tokens
        )

    def _body(self) -> bytes:
        """The request's body, and nothing of the next request; where that cannot be told apart the
        connection ends with the answer."""
        keep, self.close_connection = self.close_connection, True
        lengths = self.headers.get_all("Content-Length", [])
        if "Transfer-Encoding" in self.headers or (not lengths and self.command == "POST"):
            raise ApiError(411, "the request needs a Content-Length, and no Transfer-Encoding")
        given = ", ".join(lengths or ["0"])
        if not re.fullmatch("[0-9]+", given):
            raise ApiError(400, f"Content-Length must be one number, not {given[:60]!r}")
        # int() refuses thousands of digits.
        digits, most = given.lstrip("0") or "0", self.server.limits.body_bytes
        length = int(digits) if len(digits) < 20 else 10**20
        if length > most:
            raise ApiError(413, f"a body of {digits[:20]} bytes: this server takes at most {most}")
        try:
            body = self.rfile.read(length)
        except TimeoutError:
            seconds = self.server.limits.request_seconds
            raise ApiError(408, f"the request took longer than {seconds:g} seconds") from None
        if len(body) < length:
            raise Gone
        self.close_connection = keep
        return body

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
        except (Gone, OSError):
            raise
        except BaseException as error:
            self._event({"error": _as_answer(error).body})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, data: dict) -> None:
        self.wfile.write(b"data: " + _json(data) + b"\n\n")
        self.wfile.flush()

    def _fail(self, error: ApiError) -> None:
        self._send(error.status, {"error": error.body})

    def _send(self, status: int, data: dict) -> None:
        body = _json(data)
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "1")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _as_answer(error: BaseException) -> ApiError:
    """What a client hears of an error: its own, or one of ours."""
    if isinstance(error, ApiError):
        return error
    return ApiError(400 if isinstance(error, InputError) else 500, describe(error))


def _json(data: dict) -> bytes:
    """As UTF-8; half a surrogate, which a client may have sent, as JSON's escape, spelled alike."""
    return json.dumps(data, ensure_ascii=False).encode(errors="backslashreplace")


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
