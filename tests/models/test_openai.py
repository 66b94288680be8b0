"""The server through OpenAI's own client package."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import tiny
from torchmlx.models import generate, load
from torchmlx.models.server import Server

openai = pytest.importorskip("openai", reason="the extra dev brings the client")
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny.write(folder, {"max_position_embeddings": 256, "eos_token_id": None})
    return load(str(folder))


@pytest.fixture(scope="module")
def alone(pair):
    """What `generate` gives."""
    return lambda prompt, count: generate(*pair, prompt, max_tokens=count)


@pytest.fixture(scope="module")
def client(pair):
    server = Server(("127.0.0.1", 0), "tiny", *pair)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client
    server.shutdown()
    server.server_close()


def test_chat_whole_and_streamed(client):
    options = dict(model="tiny", messages=HELLO, max_tokens=12)
    whole = client.chat.completions.create(**options, logprobs=True, top_logprobs=3)
    (choice,) = whole.choices
    assert whole.usage.completion_tokens == 12 and choice.finish_reason == "length"
    assert len(choice.logprobs.content) == 12
    assert [len(entry.top_logprobs) for entry in choice.logprobs.content] == [3] * 12
    usage = {"include_usage": True}
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options=usage))
    text = "".join(c.choices[0].delta.content for c in chunks if c.choices)
    assert text == choice.message.content
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == 12


def test_completions(client):
    options = dict(model="tiny", prompt="once", max_tokens=8, temperature=1, seed=4)
    whole = client.completions.create(**options, logprobs=2)
    assert len(whole.choices[0].logprobs.tokens) == 8
    chunks = client.completions.create(**options, stream=True)
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text


def test_32_streams_at_once(client, alone):
    """Every one gets what it gets alone; every eighth leaves after its third chunk."""

    def stream(i):
        prompt, text = f"{i} is a number" * (1 + i % 3), ""
        chunks = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=16 + i % 5, stream=True
        )
        for count, chunk in enumerate(chunks):
            text += chunk.choices[0].text
            if i % 8 == 7 and count == 2:
                chunks.close()
                return None
        return text, alone(prompt, 16 + i % 5)

    with ThreadPoolExecutor(32) as pool:
        found = [pair for pair in pool.map(stream, range(32)) if pair is not None]
    assert len(found) == 28
    for text, expected in found:
        assert text == expected


def test_penalties_and_seed(client):
    options = dict(model="tiny", prompt="abc", max_tokens=30)
    plain = client.completions.create(**options).choices[0].text
    penalised = client.completions.create(**options, presence_penalty=2, frequency_penalty=2)
    assert penalised.choices[0].text != plain
    drawn = [
        client.completions.create(**options, temperature=1, seed=seed).choices[0].text
        for seed in (3, 3, 4)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_errors_have_the_client_s_classes(client):
    with pytest.raises(openai.BadRequestError, match="context is 256") as caught:
        client.completions.create(model="tiny", prompt="a" * 300)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match="'tiny'"):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="tiny", prompt="a", temperature=-1)
