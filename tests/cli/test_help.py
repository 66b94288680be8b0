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
    for command in ("generate", "chat", "serve", "eval", "convert", "doctor", "kernels", "demo"):
        assert f"\n    {command} " in outcome.out


@pytest.mark.parametrize(
    "told", ["512", "0 is greedy", "generation_config.json", "bfloat16", "stdin", "examples:"]
)
def test_generate_help_tells_units_and_defaults(torchmlx, told):
    assert told in torchmlx("generate", "--help").out


def test_version(torchmlx):
    assert torchmlx("--version").out.startswith("torchmlx ")
