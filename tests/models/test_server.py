"""The server over real HTTP: OpenAI's answers and errors, many clients, clients that leave."""

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import tiny
from tests.conftest import ROOT
from torchmlx.models import load, stream_generate
from torchmlx.models.server import Limits, Server

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
    thread.join()
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


def idle(server) -> bool:
    """Whether the engine has nothing to do, within some seconds."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if server.engine.running == server.engine.waiting == 0:
            return True
        time.sleep(0.02)
    return False


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
    (PLAIN, {"prompt": "a", "top_p": 0}, 400, "top_p"),
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
]


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
            with socket.create_connection(("127.0.0.1", server.server_port)) as leaving:
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
while not events.get().finish_reason:
    pass
engine.close()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
