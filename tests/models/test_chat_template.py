"""Templates render as transformers renders them, and hostile ones get nowhere and soon stop."""

import json
import sys
import time
from pathlib import Path

import pytest

from torchmlx.errors import InputError
from torchmlx.models import chat_template
from torchmlx.models.chat_template import ChatTemplate, load_chat_template

MAXRSS_UNIT = 1024 if sys.platform == "darwin" else 1  # bytes there, KiB here

USER = {"role": "user", "content": 'What is 2 < 3 & "é"? 你好 🎉'}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wetter in <Stadt>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
    ],
}
CHATS = {
    "user": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "turns": [USER, {"role": "assistant", "content": "Yes.\n"}, USER],
    "thinking": [
        USER,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes.", "reasoning": "hm"},
        USER,
    ],
    "reasoning": [USER, {"role": "assistant", "content": "Yes", "reasoning_content": "why"}],
    "tools": [USER, CALL, {"role": "tool", "content": '{"t": 3}'}, USER],
}
OPTIONS = [
    {},
    {"add_generation_prompt": False},
    {"tools": TOOLS},
    {"enable_thinking": False},
    {"tools": TOOLS, "add_generation_prompt": False, "enable_thinking": True},
]

# The idioms of released templates, in small: trimming, loop state, namespace, macros, slices, tests
# and filters. The released ones themselves are compared below, with the network.
IDIOMS = """{%- set ns = namespace(last=none, n=0) -%}
{%- macro turn(role, text='') %}
<|{{ role }}|>
    {{- text | trim }}<|end|>{{ '\\n' }}
{%- endmacro -%}
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ turn('system', messages[0].content) }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for tool in tools or [] %}
{{ tool | tojson }} {{ tool.function | tojson(indent=2) }} {{ tool['function'].name ~ 1 ~ none }}
{%- endfor %}
{%- for m in messages[::-1] if m.role == 'user' %}{% set ns.last = m.content %}{% break %}
{%- endfor %}
{%- for message in messages %}
    {%- set ns.n = ns.n + 1 %}
    {%- if message.content is string and loop.index0 % 2 == 0 or loop.last %}
        {{- turn(message['role'], message.content or '') }}
    {%- elif message.tool_calls is defined and message.tool_calls %}
        {%- for name, value in message.tool_calls[0].function.arguments | items %}
{{ loop.index }}/{{ loop.length }} {{ name }}={{ value | upper }}{{ "%s %d" | format(name, 3) }}
        {%- endfor %}
    {%- elif message.reasoning_content %}{{ message.reasoning_content.split('h')[0].strip('w') }}
    {%- else %}{% generation %}{{ message.content.replace('e', 'E') }}{% endgeneration %}
    {%- endif %}
    {%- if not loop.last %}{{ loop.nextitem.role }}{% continue %}{% endif %}
{%- endfor %}
{{ [1, 2, ns.n] }} {{ {'a': [none, true]} }} {{ ns.last | length }} {{ messages | length }}
{{ messages | map(attribute='role') | join(', ') }} {{ 'x' * 3 }} {{ ['a'] + ['b'] }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ 7 // 2 }} {{ 2 ** 5 }}
{{ range(3) | list }} {{ undefined_name }} {{ undefined_name | default('d') }} {{ "%05d" % 42 }}
{{ messages | tojson(sort_keys=true) }} {{ '{} {}'.format(1, 'b') }} {{ dict(a=1) }}
{%- if add_generation_prompt %}<|assistant|>{% if enable_thinking is false %}<nothink>{% endif %}
{%- endif %}
"""


def oracle(template, chat, options):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    chat = utils._normalize_chat_messages(chat)
    options = {"add_generation_prompt": True, **options}
    (text,), _ = utils.render_jinja_template([chat], chat_template=template, **options)
    return text


def compare(template, chat, options):
    ours = ChatTemplate(template, "t.jinja").render(chat, **options)
    assert ours == oracle(template, chat, options)
    return ours


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("chat", CHATS)
def test_idioms_equal_transformers(chat, options):
    text = compare(IDIOMS, CHATS[chat], {**options, "bos_token": "<s>"})
    assert text.startswith("<s>") and "<|user|>" in text


@pytest.mark.network
@pytest.mark.parametrize("chat", CHATS)
def test_released_templates_equal_transformers(npm_tokenizer, chat):
    transformers = pytest.importorskip("transformers")
    config = json.loads((npm_tokenizer / "tokenizer_config.json").read_text())
    theirs = transformers.AutoTokenizer.from_pretrained(npm_tokenizer)
    ours = load_chat_template(npm_tokenizer, config)
    special = {name: config.get(name) for name in ("bos_token", "eos_token")}
    for options in OPTIONS:
        options = {"add_generation_prompt": True, **options}
        try:
            expected = theirs.apply_chat_template(CHATS[chat], tokenize=False, **options)
        except Exception as error:  # Llama 3's first template cannot do content-less messages
            expected = type(error)
        try:
            text = ours.render(CHATS[chat], **options, **special)
        except InputError:
            assert isinstance(expected, type)
        else:
            assert text == expected


@pytest.mark.network
@pytest.mark.parametrize("chat", ["user", "system", "turns"])
def test_smollm2_template_equals_transformers(smollm2, chat):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2)
    config = json.loads((smollm2 / "tokenizer_config.json").read_text())
    text = load_chat_template(smollm2, config).render(CHATS[chat])
    expected = theirs.apply_chat_template(CHATS[chat], tokenize=False, add_generation_prompt=True)
    assert text == expected


def test_strftime_now_is_todays_date():
    text = ChatTemplate("{{ strftime_now('%d %b %Y') }}", "t").render([])
    assert text == time.strftime("%d %b %Y")


def render(source, chat=(USER,), **options):
    return ChatTemplate(source, "t.jinja").render(list(chat), **options)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ 1 }}\n{% if %}", "t.jinja, line 2: chat template is broken"),
        ("{% for x in y %}", "t.jinja, line 1: chat template is broken: Unexpected end"),
        ("{{ 'a' | nofilter }}", "No filter named 'nofilter'"),
        ("a\nb\n{{ raise_exception('no\nsystem role') }}", "line 3: chat template failed: no sy"),
        ("\n{{ nothing.at.all }}", "line 2: chat template failed: 'nothing' is undefined"),
        ("{{ messages[0] + 1 }}", "line 1: chat template failed: TypeError"),
        ("{% include 'x' %}", "chat template failed: TypeError: no loader"),
        ("{% import 'os' as os %}", "chat template failed: TypeError: no loader"),
        ("{% extends 'x' %}", "chat template failed: TypeError: no loader"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}", "RecursionError"),
        ("{{ " + "-" * 20_000 + "1 }}", "RecursionError"),
        ("{% if 1 %}" * 2_000 + "{% endif %}" * 2_000, "t.jinja"),
        ("{% for x in [1] %}" * 30 + "{% endfor %}" * 30, "t.jinja"),
        ("x" * (2 << 20), "chat template of more than 1,048,576 characters"),
    ],
    ids=lambda value: value[:30],
)
def test_failures_are_one_line_with_file_and_line(source, message):
    with pytest.raises(InputError) as caught:
        render(source)
    text = str(caught.value)
    assert message in text and "t.jinja" in text
    assert "\n" not in text and len(text) < 500


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__']['__base__'] }}",
    "{{ ''|attr('__class__')|attr('__base__') }}",
    "{{ messages|map(attribute='__class__')|map(attribute='__base__')|list }}",
    "{{ raise_exception.__globals__['__builtins__']['open']('/etc/passwd').read() }}",
    "{{ strftime_now.__code__.co_consts }}",
    "{{ strftime_now.__globals__.datetime }}",
    "{{ dict.__class__.__base__.__subclasses__() }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.environment.globals }}",
    "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "{{ loop.__class__ }}{% for x in [1] %}{{ loop._iterator.gi_frame.f_builtins }}{% endfor %}",
    "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "{{ '{m.__class__.__base__}'.format(m=messages) }}",
    "{{ ['{0.__class__.__base__}']|map('format', messages)|list|first.upper.__self__ }}",
    "{% set f = 'x'.format_map %}{{ f({'a': 1}) }}",
    "{{ [].append.__self__.__class__.__base__ }}",
    "{{ messages.append({'role': 'x'}) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages.clear() }}",
    "{{ lipsum.__globals__ }}",
    "{{ lipsum(n=10000) }}",
    "{{ '__import__'('os') }}",
    "{{ import('os') }}",
    "{{ open('/etc/passwd').read() }}",
    "{{ config }}{{ request.application.__globals__ }}",
    "{{ ({}|tojson).__class__.mro() }}",
    "{{ (1).__class__.__base__.__subclasses__() }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__.__mro__ }}",
    "{{ ' counted' }}{{ messages| counted }}",
    "{% call(x) ''.__class__() %}{% endcall %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_attributes_and_code_are_out_of_reach(source):
    """Either an error, or text that gives nothing away; and the messages stay as they were."""
    chat = [dict(USER)]
    try:
        text = render(source, chat)
    except InputError as error:
        text = str(error)
        assert "\n" not in text
    for secret in ("<class", "<module", "root:", "uid=", "<built-in", "<code", "sys.", "Error'>"):
        assert secret not in text
    assert chat == [USER]


NEST = "{% for a in range(100000) %}" * 5 + "x" + "{% endfor %}" * 5
DOUBLE = (
    "{% set ns = namespace(x='abc') %}{% for i in range(99) %}{% set ns.x = EXPR %}{% endfor %}"
)
BOMBS = {
    "range": "{{ range(10**9)|list }}",
    "repeat": "{{ 'x' * 10**9 }}",
    "repeat literal": "{{ 'x' * 1000000000 }}",
    "repeat list": "{{ [0] * 10**9 }}",
    "repeat reversed": "{{ 1000000000 * 'x' }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "power chain": "{{ 9 ** (9 ** (9 ** 9)) }}",
    "products": "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}"
    "{% endfor %}{{ ns.x }}",
    "nested loops": NEST,
    "nested quiet loops": "{% set x = 1 %}" + NEST.replace("x{%", "{%"),
    "loop over text": "{% set t = 'x' * 1000000 %}" + "{% for c in t %}" * 3 + "{% endfor %}" * 3,
    "macro tree": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}"
    "{% endfor %}",
    "double ~": DOUBLE.replace("EXPR", "ns.x ~ ns.x"),
    "double +": DOUBLE.replace("EXPR", "ns.x + ns.x"),
    "double join": DOUBLE.replace("EXPR", "[ns.x, ns.x]|join"),
    "double method": DOUBLE.replace("EXPR", "''.join([ns.x, ns.x])"),
    "double generator": DOUBLE.replace("EXPR", "([ns.x, ns.x]|map('string'))|join"),
    "double format": DOUBLE.replace("EXPR", "'{0}{0}'.format(ns.x)"),
    "double %": DOUBLE.replace("EXPR", "'%s%s' % (ns.x, ns.x)"),
    "double filter": DOUBLE.replace("EXPR", "'%s%s'|format(ns.x, ns.x)"),
    "double replace": DOUBLE.replace("EXPR", "ns.x.replace('a', ns.x)"),
    "double replace filter": DOUBLE.replace("EXPR", "ns.x|replace('', ns.x)"),
    "double list": DOUBLE.replace("EXPR", "[ns.x, ns.x]") + "{{ ns.x }}",
    "double list json": DOUBLE.replace("EXPR", "[ns.x, ns.x]") + "{{ ns.x|tojson }}",
    "double list string": DOUBLE.replace("EXPR", "[ns.x, ns.x]") + "{{ ns.x|string }}",
    "double list %": DOUBLE.replace("EXPR", "[ns.x, ns.x]") + "{{ '%s' % ns.x }}",
    "double dict": DOUBLE.replace("EXPR", "{'a': ns.x, 'b': ns.x}") + "{{ ns.x }}",
    "double block": "{% set ns = namespace(x='abc') %}{% for i in range(99) %}"
    "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "many references": "{% set big = 'x' * 10000000 %}{{ ([big] * 100000)|join }}",
    "attribute map": "{% set d = {'big': 'x' * 10000000} %}"
    "{{ ([d] * 100000)|map(attribute='big')|join }}",
    "separator": "{{ range(100000)|join('x' * 10000000) }}",
    "map of lists": "{{ ([range(100000)] * 100000)|map('list')|list }}",
    "sum of lists": "{% set l = [[1] * 10] * 90000 %}{{ l|sum(start=[]) }}",
    "center": "{{ 'x'|center(1000000000) }}",
    "center method": "{{ 'x'.center(1000000000) }}",
    "ljust": "{{ 'x'.ljust(1000000000) }}",
    "zfill": "{{ 'x'.zfill(1000000000) }}",
    "expandtabs": "{{ '\\t'.expandtabs(1000000000) }}",
    "format width": "{{ '{:1000000000}'.format('x') }}",
    "format nested width": "{{ '{:{}}'.format('x', 1000000000) }}",
    "format map width": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "% width": "{{ '%1000000000d' % 1 }}",
    "% star": "{{ '%*d' % (1000000000, 1) }}",
    "% precision": "{{ '%.1000000000f' % 1.0 }}",
    "indent": "{{ ('a\\n' * 1000000)|indent(1000000) }}",
    "indent text": "{{ ('a\\n' * 1000000)|indent('x' * 100000) }}",
    "json indent": "{{ messages|tojson(indent=1000000000) }}",
    "json nested indent": "{{ ([[1]] * 100000)|tojson(indent=10000) }}",
    "batch": "{{ [1]|batch(1000000000, 'x')|list }}",
    "slice": "{{ [1]|slice(1000000000)|list }}",
    "round": "{{ 1.5|round(1000000000, 'floor') }}",
    "to_bytes": "{{ (1).to_bytes(1000000000, 'big') }}",
    "strftime": "{{ strftime_now('%1000000000d') }}",
    "cheap output": "{% for i in range(100000) %}" + "{{ messages }}" * 1000 + "{% endfor %}",
    "wordwrap": "{{ ('a ' * 1000000)|wordwrap(1, wrapstring='x' * 1000000) }}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_soon_and_cheaply(name, monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 1.0)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    with pytest.raises(InputError, match=r"t\.jinja") as caught:
        render(BOMBS[name])
    assert time.perf_counter() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000 * MAXRSS_UNIT
    assert "\n" not in str(caught.value)


def test_a_long_honest_chat_is_rendered():
    chat = [{"role": ("user", "assistant")[i % 2], "content": "word " * 500} for i in range(1500)]
    source = (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
        "{{ '<|' ~ m.role ~ '|>' + m.content|trim + '\\n' }}{% endfor %}{{ ns.n }}"
    )
    text = render(source, chat)
    assert len(text) > 3_000_000 and text.endswith("1500")


def test_objects_in_messages_are_refused():
    with pytest.raises(InputError, match=r"not \w*Path"):
        render("{{ messages }}", [{"role": "user", "content": Path("x")}])


def test_variables_may_have_any_name_but_the_conversations():
    names = {"self": "a", "template": "b", "context": "c", "range": "d"}
    assert render("{{ template }}{{ context }}{{ range }}", [USER], **names) == "bcd"
    with pytest.raises(InputError, match="`messages` is the conversation itself"):
        render("", [USER], messages=[])


def test_messages_nested_too_deeply():
    deep = json.loads("[" * 900 + "]" * 900)
    with pytest.raises(InputError, match="nested too deeply"):
        render("", [{"role": "user", "content": deep}])


def test_one_template_serves_many_renderings():
    template = ChatTemplate("{{ messages[0].content }}", "t")
    for text in ("a", "b"):
        assert template.render([{"role": "user", "content": text}]) == text


def load(folder, config, name=None):
    template = load_chat_template(folder, config, name)
    return template and (template.source, Path(template.origin).name)


def test_where_the_template_comes_from(tmp_path):
    assert load(tmp_path, {}) is None
    config = {"chat_template": "from config"}
    assert load(tmp_path, config) == ("from config", "tokenizer_config.json")
    (tmp_path / "chat_template.json").write_text('{"chat_template": "from json"}')
    assert load(tmp_path, config) == ("from json", "chat_template.json")
    (tmp_path / "chat_template.jinja").write_text("from jinja é", encoding="utf-8")
    assert load(tmp_path, config) == ("from jinja é", "chat_template.jinja")


def test_named_templates(tmp_path):
    listed = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    assert load(tmp_path, {"chat_template": listed})[0] == "d"
    assert load(tmp_path, {"chat_template": listed}, "tool_use")[0] == "t"
    assert load(tmp_path, {"chat_template": listed}, "rag")[0] == "d"
    with pytest.raises(InputError, match="no chat template named 'default'; there are: 'rag'"):
        load(tmp_path, {"chat_template": [{"name": "rag", "template": "r"}]})


@pytest.mark.parametrize("value", [5, [5], [{"name": "default"}], [{"name": [], "template": ""}]])
def test_broken_template_fields(tmp_path, value):
    with pytest.raises(InputError, match="tokenizer_config.json: field 'chat_template'"):
        load(tmp_path, {"chat_template": value})


def test_a_template_file_that_is_not_text(tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="chat_template.jinja: not UTF-8"):
        load(tmp_path, {})
