import re

import pytest

FLAGS = {
    "generate": """--model --prompt --max-tokens --temperature --top-p --top-k --min-p
        --repetition-penalty --stop --seed --system --raw --dtype --device --revision --json
        --force --template-var --kv-bits --prefill-step-size
        --draft-model --num-draft-tokens""",
    "chat": "--model --system --template-var --temperature --max-tokens --dtype /clear /undo",
    "serve": "--model --host --port --rows --waiting --max-tokens --timeout --kv-bits --dtype",
    "eval": "--model --text --context --json --dtype",
    "convert": "SRC OUT --dtype --force",
    "decode-video": """--vae --latents --out --fps --codec --tile --stride --no-tiling --blend
        --memory-limit --dtype --normalized""",
    "encode-video": "--vae --input --out --frames --tile --memory-limit --dtype --normalized",
    "roundtrip": "--vae --input --out --frames --json --tile --memory-limit --dtype",
    "doctor": "--json",
    "kernels list": "--json",
    "demo": "text",
}


@pytest.mark.parametrize("command", FLAGS)
def test_help_names_every_flag(torchmlx, command):
    outcome = torchmlx(*command.split(), "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert [flag for flag in FLAGS[command].split() if flag not in outcome.out] == []


def test_top_help_names_every_command(torchmlx):
    outcome = torchmlx("--help")
    assert outcome.code == 0
    commands = "generate chat serve eval convert decode-video encode-video roundtrip doctor"
    for command in (*commands.split(), "kernels", "demo"):
        assert re.search(rf"\n    {command}\s", outcome.out)


@pytest.mark.parametrize(
    "told", ["512", "0 is greedy", "generation_config.json", "bfloat16", "stdin", "examples:"]
)
def test_generate_help_tells_units_and_defaults(torchmlx, told):
    assert told in torchmlx("generate", "--help").out


def test_version(torchmlx):
    assert torchmlx("--version").out.startswith("torchmlx ")
