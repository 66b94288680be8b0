"""The server over real HTTP: OpenAI's answers and errors, many clients, clients that leave."""

import contextlib
import gc
import http.client
import itertools
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import mlx.core as mx
import pytest
import tokenizers

import torchmlx
from tests import tiny
from tests.conftest import ROOT
from torchmlx.errors import InputError
from torchmlx.models import load, stream_generate
from torchmlx.models.api import read_call
from torchmlx.models.batching import Engine, Request
from torchmlx.models.chat_template import ChatTemplate
from torchmlx.models.prompt_cache import PromptReader
from torchmlx.models.sampling import Sampling
from torchmlx.models.server import Limits, Server
from torchmlx.models.tokenizer import Tokenizer

NESTED = json.loads("[" * 700 + "]" * 700)
LIMITS = Limits(body_bytes=100_000, max_tokens=200, idle_seconds=5.0, answer_seconds=60.0)
CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    # No end-of-text token, so that lengths are known.
    tiny.write(folder, {"max_position_embeddings": 512, "eos_token_id": None})
    server = Server(("127.0.0.1", 0), "tiny", *load(str(folder)), LIMITS, rows=8, waiting=64)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(30)
    assert not server.engine._thread.is_alive()


@pytest.fixture
def post(server):
    def send(path, body, method="POST"):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data if method == "POST" else None)
        response = connection.getresponse()
        raw = response.read().decode()
        connection.close()
        streamed = response.getheader("Content-Type", "").startswith("text/event-stream")
        return response.status, raw if streamed else json.loads(raw)

    return send


def events(raw: str) -> list[dict]:
    lines = [line for line in raw.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def alone(server, ids, **options) -> str:
    return "".join(r.text for r in stream_generate(server.model, server.tokenizer, ids, **options))


def soon(holds) -> bool:
    """Whether a condition comes to hold within some seconds."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.001)
    return False


def idle(server) -> bool:
    """Whether the engine has nothing to do, within some seconds."""
    return soon(lambda: server.engine.running == server.engine.waiting == 0)


def test_chat_answers_as_generate_does(server, post):
    status, answer = post(CHAT, {"model": "tiny", "messages": HELLO, "max_tokens": 20})
    ids = server.tokenizer.encode_chat(HELLO)
    assert status == 200 and answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": alone(server, ids, max_tokens=20),
    }
    assert choice["finish_reason"] == "length"
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(ids), 20)
    assert usage["total_tokens"] == len(ids) + 20


def test_stream_equals_the_whole(server, post):
    body = {"prompt": "once upon", "max_tokens": 30}
    whole = post(PLAIN, body)[1]["choices"][0]["text"]
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    chunks = events(post(PLAIN, body)[1])
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == whole
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * 29 + ["length"]
    assert chunks[-1]["usage"]["completion_tokens"] == 30 and chunks[-1]["choices"] == []
    assert chunks[0]["usage"] is None


def test_chat_stream(server, post):
    body = {"messages": HELLO, "max_tokens": 5, "stream": True}
    chunks = events(post(CHAT, body)[1])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    ids = server.tokenizer.encode_chat(HELLO)
    assert "".join(d["content"] for d in deltas) == alone(server, ids, max_tokens=5)


def test_stop_seed_and_logprobs(server, post):
    body = {"prompt": "abc", "max_tokens": 40, "temperature": 1.0, "seed": 7}
    first, again = (post(PLAIN, body)[1]["choices"][0]["text"] for _ in range(2))
    assert first == again
    ids = server.tokenizer.encode("abc")
    assert first == alone(server, ids, max_tokens=40, temperature=1.0, seed=7)
    stop = first[10:12]
    cut = post(PLAIN, body | {"stop": stop})[1]["choices"][0]
    assert cut["text"] == first[: first.index(stop)] and cut["finish_reason"] == "stop"
    found = post(CHAT, {"messages": HELLO, "max_tokens": 3, "logprobs": True, "top_logprobs": 2})
    for entry in found[1]["choices"][0]["logprobs"]["content"]:
        best, second = entry["top_logprobs"]
        assert entry["logprob"] == best["logprob"] >= second["logprob"]
        assert entry["token"] == best["token"] and entry["logprob"] < 0


def test_penalties_and_bias(server, post):
    body = {"prompt": "abc", "max_tokens": 3, "logit_bias": {"65": 100}}
    text = post(PLAIN, body)[1]["choices"][0]["text"]
    assert text == server.tokenizer.decode([65, 65, 65])
    body = {"prompt": "abc", "max_tokens": 30, "presence_penalty": 2, "frequency_penalty": 2}
    ids = server.tokenizer.encode("abc")
    expected = alone(server, ids, max_tokens=30, presence_penalty=2.0, frequency_penalty=2.0)
    assert post(PLAIN, body)[1]["choices"][0]["text"] == expected
    assert expected != alone(server, ids, max_tokens=30)


def test_models_and_health(server, post):
    assert post("/v1/models", b"", "GET")[1]["data"][0]["id"] == "tiny"
    assert idle(server)
    status, health = post("/health", b"", "GET")
    assert (status, health) == (200, {"status": "ok", "running": 0, "waiting": 0})


FAULTS = [
    (PLAIN, b"{not json", 400, "not valid JSON"),
    (PLAIN, b"[]", 400, "JSON object"),
    (PLAIN, {}, 400, "prompt"),
    (PLAIN, {"prompt": ""}, 400, "empty"),
    (PLAIN, {"prompt": [1, 999999]}, 400, "outside the vocabulary"),
    (PLAIN, {"prompt": "a" * 600}, 400, "the model's context is 512"),
    (PLAIN, {"prompt": "a", "max_tokens": 201}, 400, "at most 200"),
    (PLAIN, {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    (PLAIN, {"prompt": "a", "temperature": -1}, 400, "temperature"),
    (PLAIN, {"prompt": "a", "temperature": "hot"}, 400, "temperature"),
    (PLAIN, {"prompt": "a", "top_p": 1.1}, 400, "top_p"),
    (PLAIN, {"prompt": "a", "n": 2}, 400, "n"),
    (PLAIN, {"prompt": "a", "stop": [""]}, 400, "stop"),
    (PLAIN, {"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias"),
    (PLAIN, {"prompt": "a", "model": "gpt-4"}, 404, "'tiny'"),
    (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"messages": [{"content": "a"}]}, 400, "role"),
    (CHAT, {"messages": HELLO, "top_logprobs": 3}, 400, "logprobs"),
    (CHAT, {"messages": HELLO, "stream": "yes"}, 400, "stream"),
    ("/v1/embeddings", {"input": "a"}, 404, "/v1/embeddings"),
    (PLAIN, b"x" * 100_001, 413, "100000"),
    (PLAIN, b'{"prompt": "a", "max_tokens": 1e400}', 400, "max_tokens"),
    (PLAIN, b'{"prompt": "a", "seed": NaN}', 400, "seed"),
    (PLAIN, {"prompt": "a", "logit_bias": {"1": 10**400}}, 400, "logit_bias"),
    (PLAIN, {"prompt": "a", "logit_bias": {"1" * 5000: 1}}, 400, "logit_bias"),
    (PLAIN, b'{"prompt": "a", "logit_bias": {"1": Infinity}}', 400, "logit_bias"),
    (PLAIN, {"prompt": "a", "logit_bias": {"\ud800": 1}}, 400, "logit_bias"),
    (PLAIN, {"prompt": [10**400]}, 400, "outside the vocabulary"),
    (PLAIN, {"prompt": "a\ud800"}, 400, "not valid Unicode at character 1"),
    (PLAIN, {"prompt": "a", "model": "\ud800"}, 404, "'tiny'"),
    (CHAT, {"messages": [{"role": "user", "content": "\udfff"}]}, 400, "not valid Unicode"),
    (CHAT, {"messages": [{"role": "\ud800", "content": "a"}]}, 400, "not valid Unicode"),
    (CHAT, {"messages": HELLO, "chat_template_kwargs": {"messages": []}}, 400, "messages"),
    (CHAT, {"messages": HELLO, "chat_template_kwargs": {"tools": 1}}, 400, "tools"),
    (CHAT, {"messages": HELLO, "chat_template_kwargs": [1]}, 400, "chat_template_kwargs"),
    (CHAT, {"messages": HELLO, "tools": {"a": 1}}, 400, "tools"),
    (CHAT, {"messages": [{"role": "user", "x": NESTED}]}, 400, "nested too deeply"),
    (CHAT, b'{"messages": ' + b"[" * 90_000, 400, "not valid JSON"),
]
NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty")
NUMBERS += ("frequency_penalty", "top_k", "max_tokens", "max_completion_tokens", "seed", "n")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "number", ["1e400", "-1e400", "NaN", "Infinity", "9" * 400, "-" + "9" * 400]
)
def test_numbers_beyond_floats_name_their_field(post, name, number):
    """JSON knows no largest number, and Python's reader takes NaN and Infinity too."""
    status, answer = post(PLAIN, f'{{"prompt": "a", "max_tokens": 1, "{name}": {number}}}'.encode())
    if name == "top_k" and number == "9" * 400:  # keeps all, as any k beyond the vocabulary
        assert status == 200
        return
    assert status == 400
    error = answer["error"]
    assert name in error["message"] and error["param"] == name


def test_what_a_template_may_be_given(server, post):
    """Names that our own functions have too; those of jinja's environment are plain values."""
    plain = post(CHAT, {"messages": HELLO, "max_tokens": 4})[1]["choices"]
    names = ("self", "template", "context", "environment", "documents", "variables", "ids", "a b")
    for kwargs in (dict.fromkeys(names, "x"), {"text": "x", "add_special_tokens": True}):
        body = {"messages": HELLO, "max_tokens": 4, "chat_template_kwargs": kwargs}
        status, answer = post(CHAT, body)
        assert status == 200 and answer["choices"] == plain


def test_half_a_surrogate_in_a_message_of_ours_is_told(server, post, monkeypatch):
    """UTF-8 cannot say it, JSON can."""
    template = ChatTemplate("{{ raise_exception(messages[0].content) }}", "t.jinja")
    monkeypatch.setattr(server.tokenizer, "chat_template", template)
    body = {"messages": [{"role": "user", "content": "no \ud800 é"}]}
    status, answer = post(CHAT, body)
    assert status == 400 and answer["error"]["message"].endswith(
        "chat template failed: no \ud800 é"
    )


@pytest.fixture
def connect(server):
    """Opens a raw connection."""
    opened = []

    def open_() -> socket.socket:
        opened.append(socket.create_connection(("127.0.0.1", server.server_port), 20))
        return opened[-1]

    yield open_
    for connection in opened:
        connection.close()


def answers(connection: socket.socket) -> list[tuple[int, dict]]:
    """Status and JSON of every answer until the server closes."""
    raw, found = b"", []
    while piece := connection.recv(1 << 16):
        raw += piece
    while raw:
        head, _, raw = raw.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        assert lines[0].startswith("HTTP/1.1 ")
        fields = dict(line.lower().split(": ", 1) for line in lines[1:])
        length = int(fields["content-length"])
        found.append((int(lines[0].split()[1]), json.loads(raw[:length])))
        raw = raw[length:]
    return found


def head(path: str, *fields: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *fields, "", ""]).encode()


HEADS = [
    (["Content-Length: " + "9" * 5000], 413, "at most 100000"),
    (["Content-Length: " + "0" * 5000 + "100001"], 413, "100001"),
    (["Content-Length: -1"], 400, "-1"),
    (["Content-Length: 2.0"], 400, "2.0"),
    (["Content-Length: \xb2"], 400, "must be one number"),
    (["Content-Length:"], 400, "must be one number"),
    (["Content-Length: 2", "Content-Length: 3"], 400, "2, 3"),
    (["Content-Length: 2", "Transfer-Encoding: chunked"], 411, "no Transfer-Encoding"),
    ([], 411, "Content-Length"),
]


@pytest.mark.parametrize(("fields", "status", "text"), HEADS, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("path", [PLAIN, "/nowhere"])
def test_a_body_of_no_known_length_ends_the_connection(connect, path, fields, status, text):
    """One answer, and what follows is not taken for a request."""
    connection = connect()
    connection.sendall(head(path, *fields).decode().encode("latin-1") + b"{}")
    ((found, answer),) = answers(connection)
    assert found == status and text in answer["error"]["message"]


def test_a_refused_request_does_not_hide_the_next(connect):
    """Its body is read, of a path or method that wants none as well; then another request comes."""
    hidden = head("/v1/models", method="GET")
    length = f"Content-Length: {len(hidden)}"
    connection = connect()
    for path, method in (("/nowhere", "POST"), ("/health", "GET"), (PLAIN, "GET"), (PLAIN, "POST")):
        connection.sendall(head(path, length, method=method) + hidden)
    connection.sendall(head("/health?x=1", "Connection: close", method="GET"))
    found = answers(connection)
    assert [status for status, _ in found] == [404, 200, 405, 400, 200]
    assert found[-1][1]["status"] == "ok"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"PUT /v1/models HTTP/1.1\r\n\r\n", 501),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /" + b"x" * 70_000, 414),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
    ],
    ids=lambda v: str(v)[:20],
)
def test_what_is_no_request_of_ours_gets_an_object_too(connect, raw, status):
    connection = connect()
    connection.sendall(raw)
    connection.shutdown(socket.SHUT_WR)
    ((found, answer),) = answers(connection)
    assert found == status and answer["error"]["message"]


def test_head_has_no_body(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    for _ in range(2):
        connection.request("HEAD", "/health")
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"")
    connection.close()


@pytest.mark.parametrize("begin", [b"", b"POST /v1", head(PLAIN, "Content-Length: 90") + b"{"])
def test_a_request_that_never_ends(server, connect, monkeypatch, begin):
    """A byte now and then does not hold a connection: the whole request has its time."""
    limits = replace(LIMITS, idle_seconds=5.0, request_seconds=0.4)
    monkeypatch.setattr(server, "limits", limits)
    connection, start = connect(), time.monotonic()
    connection.sendall(begin)
    found = None
    connection.settimeout(0.05)
    while found is None and time.monotonic() < start + 10:
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(b" ")
        try:
            found = connection.recv(1000)
        except TimeoutError:
            continue
        except ConnectionResetError:
            found = b""
    assert time.monotonic() < start + 3
    assert found.startswith(b"HTTP/1.1 408") if begin.endswith(b"{") else found == b""


def test_a_connection_may_idle_between_requests(server, monkeypatch):
    """Longer than a request may take."""
    monkeypatch.setattr(server, "limits", replace(LIMITS, request_seconds=0.2))
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    for _ in range(2):
        connection.request("GET", "/health")
        socket_ = connection.sock
        assert connection.getresponse().read()
        time.sleep(0.4)
    assert connection.sock is socket_
    connection.close()


def test_connections_too_many_are_told_so(poisoned):
    """Status 503 until one is closed; refused ones leave nothing behind."""
    server = Server(("127.0.0.1", 0), "tiny", *poisoned, replace(LIMITS, connections=3))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    get = head("/health", method="GET")
    address = ("127.0.0.1", server.server_port)

    def status() -> bytes:
        with socket.create_connection(address, 20) as one:
            one.sendall(get)
            return one.recv(12)[-3:]

    try:
        held = [socket.create_connection(address, 20) for _ in range(3)]
        for one in held:
            one.sendall(get)
            assert one.recv(12) == b"HTTP/1.1 200"
        assert [status() for _ in range(5)] == [b"503"] * 5
        held.pop().close()
        assert soon(lambda: status() == b"200")
        for one in held:
            one.close()
        assert soon(lambda: server._places._value == 3)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)


def test_a_token_without_any_likelihood_has_a_number(server, post, monkeypatch):
    """JSON knows no -Infinity: OpenAI's word for it is -9999."""
    forward = type(server.model).logits
    only = {65: 0.0, 66: -1.0}

    def logits(model, hidden):
        row = torchmlx.full((258,), -float("inf"))
        for token, value in only.items():
            row[token] = value
        return forward(model, hidden) * 0 + row

    monkeypatch.setattr(type(server.model), "logits", logits)
    body = {"prompt": "never seen", "max_tokens": 2, "logprobs": 3}
    found = post(PLAIN, body)[1]["choices"][0]["logprobs"]["top_logprobs"]
    monkeypatch.undo()
    assert [sorted(top.values())[0] for top in found] == [-9999.0] * 2
    assert found[0][server.tokenizer.decode([65])] == pytest.approx(-0.3133, abs=1e-4)


def test_a_prompt_that_the_tokenizer_has_no_token_for(server, post, monkeypatch):
    """What tokenizers says of it, in one line."""
    strict = tokenizers.Tokenizer(tokenizers.models.WordPiece({"a": 0}, unk_token="[UNK]"))
    monkeypatch.setattr(server.tokenizer, "backend", strict)
    status, answer = post(PLAIN, {"prompt": "b"})
    assert status == 400
    assert answer["error"]["message"].startswith("the tokenizer cannot read this text (WordPiece")


def test_a_token_that_only_the_tokenizer_knows(server, post, monkeypatch):
    """An added token beyond the model's vocabulary is the request's fault, not the server's."""
    wide = tokenizers.Tokenizer.from_str(server.tokenizer.backend.to_str())
    wide.add_special_tokens(["<more>"])
    monkeypatch.setattr(server.tokenizer, "backend", wide)
    status, answer = post(PLAIN, {"prompt": "a<more>"})
    assert status == 400 and "outside the model's vocabulary of 258" in answer["error"]["message"]


@pytest.mark.parametrize(("path", "body", "status", "text"), FAULTS, ids=lambda v: str(v)[:40])
def test_faults_get_a_status_and_one_message(post, path, body, status, text):
    found, answer = post(path, body)
    assert found == status
    assert text in answer["error"]["message"]


def test_wrong_method(post):
    assert post(PLAIN, b"", "GET")[0] == 405


def test_prompts_with_one_beginning_are_read_once(server, post):
    history = [*HELLO, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "so?"}]
    plain = alone(server, server.tokenizer.encode_chat(history), max_tokens=8)
    post(CHAT, {"messages": HELLO, "max_tokens": 2})
    answer = post(CHAT, {"messages": history, "max_tokens": 8})[1]
    known = len(server.tokenizer.encode_chat(HELLO, add_generation_prompt=True))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= known
    assert answer["choices"][0]["message"]["content"] == plain


def test_32_streams_at_once_and_clients_that_vanish(server, post):
    """More clients than rows; every fourth leaves early. The others get what they get alone."""
    prompts = [f"{i} is a number" * (1 + i % 3) for i in range(32)]

    def client(i):
        body = {"prompt": prompts[i], "max_tokens": 10 + i % 5, "stream": True}
        if i % 4 == 3:
            with socket.create_connection(("127.0.0.1", server.server_port), 60) as leaving:
                data = json.dumps({**body, "max_tokens": 200}).encode()
                head = f"POST {PLAIN} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
                leaving.sendall(head.encode() + data)
                leaving.recv(64)
            return None
        return "".join(c["choices"][0]["text"] for c in events(post(PLAIN, body)[1]))

    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(client, range(32)))
    for i, text in enumerate(found):
        if text is not None:
            ids = server.tokenizer.encode(prompts[i])
            assert text == alone(server, ids, max_tokens=10 + i % 5), i
    assert idle(server), "a client that left still has a row"
    assert server.engine.rows == []


def test_a_long_prompt_is_read_between_the_others_tokens(server, monkeypatch):
    """A piece, a token, a piece, ...; and nobody's text changes."""
    engine, log = server.engine, []
    monkeypatch.setattr(engine, "prefill_step", 16)
    read = PromptReader.read

    def logged(self, *args):
        log.append("piece")
        return read(self, *args)

    monkeypatch.setattr(PromptReader, "read", logged)
    texts: dict[str, str] = {"short": "", "long": ""}
    ended = {name: threading.Event() for name in texts}

    def emit(name):
        def heard(event):
            log.append(name)
            texts[name] += event.text
            if event.finish_reason:
                ended[name].set()

        return heard

    short, long = [7, 8, 9], [*range(50, 250)]
    engine.submit(Request(short, emit("short"), max_tokens=120))
    assert soon(lambda: "short" in log)
    engine.submit(Request(long, emit("long"), max_tokens=4))
    assert all(event.wait(60) for event in ended.values())
    monkeypatch.setattr(PromptReader, "read", read)
    pieces = [i for i, what in enumerate(log) if what == "piece"][1:]
    assert len(pieces) == 13
    for one, next_one in itertools.pairwise(pieces):
        assert log[one:next_one] == ["piece", "short"]
    assert texts["short"] == alone(server, short, max_tokens=120)
    assert texts["long"] == alone(server, long, max_tokens=4)


def test_a_request_that_leaves_while_it_is_read(server, monkeypatch):
    """It is read no further, and the next one is served."""
    monkeypatch.setattr(server.engine, "prefill_step", 1)
    gone = Request([*range(5, 250)], lambda event: None, max_tokens=50)
    server.engine.submit(gone)
    assert soon(lambda: (now := server.engine._reading) is not None and now[1].done >= 3)
    reader = server.engine._reading[1]
    gone.cancelled = True
    assert idle(server)
    assert reader.done < 245 and server.engine.rows == []


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long(server, post, monkeypatch, stream):
    """504, or its message in the stream that has begun; the row is free again."""
    monkeypatch.setattr(server, "limits", replace(LIMITS, answer_seconds=0.0))
    body = {"prompt": "abc", "max_tokens": 200, "stream": stream}
    status, answer = post(PLAIN, body)
    if stream:
        assert status == 200
        chunks = events(answer)
        assert len(chunks) == 2 and chunks[1]["error"]["type"] == "server_error"
        answer = chunks[1]
    else:
        assert status == 504
    assert "longer than this server allows" in answer["error"]["message"]
    assert idle(server) and server.engine.rows == []


def test_tools_reach_the_template(server, tmp_path):
    """As transformers hands them over: the list of functions, beside the messages."""
    (tmp_path / "t").mkdir()
    tiny.write_tokenizer(tmp_path / "t")
    path = tmp_path / "t" / "tokenizer_config.json"
    template = (
        "{% for t in tools %}{{ t | tojson }};{% endfor %}{{ messages[0].content }}{{ mood }}"
    )
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    tokenizer = Tokenizer.from_folder(tmp_path / "t")
    tool = {"type": "function", "function": {"name": "now", "parameters": {}}}
    body = {"messages": HELLO, "tools": [tool], "chat_template_kwargs": {"mood": "!"}}
    ids = read_call(body, True, server.model, tokenizer, 10).ids
    assert tokenizer.decode(ids) == f"{json.dumps(tool)};hello!"


def test_nothing_is_left_of_many_requests(server, post):
    """Memory, threads and rows after a third and a second crowd are those after the first."""
    server.engine.prompts.entries, kept = 0, server.engine.prompts.entries
    found, body = [], {"prompt": "once upon a time", "max_tokens": 12, "stream": True}
    for _ in range(3):
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda _: post(PLAIN, body), range(24)))
        assert idle(server) and server.engine.rows == []
        gc.collect()
        if found:  # a connection's thread ends after its client has read the last byte
            soon(lambda: threading.active_count() <= found[0][1])
        found.append((mx.get_active_memory(), threading.active_count()))
    server.engine.prompts.entries = kept
    assert found[2][0] <= found[0][0] + 4096 and found[2][1] <= found[0][1]


def test_more_than_may_wait(server):
    """A full queue answers 429 at once, with Retry-After."""
    engine = server.engine
    most, engine.most_waiting = engine.most_waiting, 0
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        connection.request("POST", PLAIN, json.dumps({"prompt": "a"}))
        response = connection.getresponse()
        assert (response.status, response.getheader("Retry-After")) == (429, "1")
        connection.close()
    finally:
        engine.most_waiting = most


def test_a_process_that_served_ends_well(tmp_path):
    """What MLX compiled in the engine's thread is gone before the interpreter is."""
    code = f"""
import queue
from torchmlx.models import load
from torchmlx.models.batching import Engine, Request
engine, events = Engine(*load({str(tiny.write(tmp_path))!r})), queue.SimpleQueue()
engine.submit(Request([1, 2, 3], events.put, max_tokens=3))
while not events.get(timeout=60).finish_reason:
    pass
engine.close()
"""
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, "-c", code], **options)
    assert (done.returncode, done.stderr) == (0, "")


def test_nobody_waits_for_a_request_that_finds_no_row(server, post, monkeypatch):
    """A fault between prompt and row is told to its client, and the next one is served."""
    with monkeypatch.context() as patch:
        patch.setattr(server.engine, "_place", lambda *_: 1 / 0)
        status, answer = post(PLAIN, {"prompt": "a", "max_tokens": 2})
    assert status == 500 and "ZeroDivisionError" in answer["error"]["message"]
    assert post(PLAIN, {"prompt": "a", "max_tokens": 2})[0] == 200


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    """A model and its tokenizer whose logits are NaN after token 200."""
    folder = tmp_path_factory.mktemp("poisoned")
    tiny.write(folder, {"max_position_embeddings": 512, "eos_token_id": None})
    return load(str(tiny.poison(folder, "model.embed_tokens.weight", row=200)))


@pytest.mark.parametrize("options", [{}, {"rules": Sampling(temperature=0.8), "seed": 1}], ids=str)
def test_a_row_whose_logits_are_no_numbers_fails_alone(poisoned, options):
    """A prompt with the broken token, and an answer that comes to it, between sound rows."""
    heard: list[queue.Queue] = [queue.Queue() for _ in range(4)]
    engine = Engine(*poisoned)
    to_broken = Sampling(logit_bias={200: 1e6})
    try:
        engine.submit(Request([1, 2, 3], heard[0].put, max_tokens=60, **options))
        engine.submit(Request([1, 200, 3], heard[1].put, max_tokens=60, **options))
        engine.submit(Request([4, 5, 6], heard[2].put, rules=to_broken, max_tokens=60))
        engine.submit(Request([7, 8], heard[3].put, max_tokens=60, **options))
        found: list[list] = [[], [], [], []]
        for events_of, mine in zip(heard, found, strict=True):
            while not mine or not mine[-1].finish_reason:
                mine.append(events_of.get(timeout=60))
        assert soon(lambda: engine.running == 0)
    finally:
        engine.close()
    for mine, ids in ((found[0], [1, 2, 3]), (found[3], [7, 8])):
        rules = {"temperature": 0.8, "seed": 1} if options else {}
        alone = list(stream_generate(*poisoned, ids, max_tokens=60, **rules))
        assert [e.token for e in mine] == [r.token for r in alone] and 200 not in alone
        assert mine[-1].finish_reason == "length"
    assert [e.token for e in found[1]] == [-1] and [e.token for e in found[2]] == [200, -1]
    for mine in (found[1], found[2]):
        assert mine[-1].finish_reason == "error"
        assert mine[-1].text.startswith("the model's logits are not finite numbers")


def test_who_cannot_hear_a_token_does_not_stop_the_others(server):
    """A fault in one request's `emit` ends that request alone."""
    heard: queue.Queue = queue.Queue()

    def deaf(event):
        raise OSError("deaf")

    server.engine.submit(Request([1, 2, 3], heard.put, max_tokens=40))
    server.engine.submit(Request([4, 5], deaf, max_tokens=40))
    text = ""
    while not (event := heard.get(timeout=60)).finish_reason:
        text += event.text
    assert text + event.text == alone(server, [1, 2, 3], max_tokens=40)
    assert idle(server)


class Panic(BaseException):
    """As a panic in Rust code comes to Python."""


@pytest.mark.parametrize("place", ["_next", "_read", "_place", "_step", "_sample"])
def test_what_is_no_exception_does_not_end_service(server, post, monkeypatch, place):
    """Whoever runs is told; the next request is served."""

    def panic(*_):
        raise Panic("rust")

    if place == "_next":
        monkeypatch.setattr("torchmlx.models.batching.PromptReader", panic)
    else:
        monkeypatch.setattr(server.engine, place, panic)
    status, answer = post(PLAIN, {"prompt": "a", "max_tokens": 2})
    assert status == 500 and "Panic: rust" in answer["error"]["message"]
    monkeypatch.undo()
    assert post(PLAIN, {"prompt": "a", "max_tokens": 2})[0] == 200


def test_a_panic_in_a_connection_is_answered(server, post, monkeypatch):
    def panic(*_):
        raise Panic("rust")

    monkeypatch.setattr("torchmlx.models.server.read_call", panic)
    status, answer = post(PLAIN, {"prompt": "a"})
    assert status == 500 and answer["error"]["message"] == "Panic: rust"


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Request([], print), "the prompt is empty"),
        (Request([1] * 513, print), "513 tokens, but the model has 512 positions"),
        (Request([1, 258], print), "outside the model's vocabulary of 258"),
        (Request([1], print, max_tokens=0), "max_tokens must be at least 1"),
    ],
)
def test_what_cannot_be_run_is_refused_at_once(server, request_, text):
    with pytest.raises(InputError, match=text):
        server.engine.submit(request_)


def test_no_request_runs_beyond_the_last_position(server):
    heard: queue.Queue = queue.Queue()
    server.engine.submit(Request([1] * 509, heard.put, max_tokens=10**30))
    found = [heard.get(timeout=60)]
    while not found[-1].finish_reason:
        found.append(heard.get(timeout=60))
    assert (len(found), found[-1].finish_reason) == (4, "length")
    text = "".join(event.text for event in found)
    assert text == alone(server, [1] * 509, max_tokens=10**30)


def test_an_engine_that_closes_tells_those_who_run_and_wait(server):
    engine = Engine(server.model, server.tokenizer, rows=1)
    heard: list[queue.Queue] = [queue.Queue(), queue.Queue()]
    for events_of in heard:
        engine.submit(Request([1, 2, 3], events_of.put, max_tokens=400))
    heard[0].get(timeout=60)
    engine.close()
    for events_of in heard:
        reasons = [events_of.get_nowait().finish_reason for _ in range(events_of.qsize())]
        assert reasons[-1] == "error"
