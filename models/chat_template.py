"""Chat templates: jinja2 programs out of a checkpoint, run as the untrusted code they are.

A template comes with the weights from a stranger. jinja2's immutable sandbox denies attributes that
lead to code. What it does not deny is work: `'x' * 10**9`, five nested loops, a macro that calls
itself twice, a string doubled forty times. So every loop step, call, filter, operator and block
passes through a `_Budget`, which bounds

    steps      2,000,000  loop rounds, calls, filters, operators and outputs
    seconds    10         on the clock, looked at each step
    text       16 Mi      characters of one value, and of the whole prompt
    produced   256 Mi     characters of all values together

and operations that make much out of little (repeat, pad, replace, join) are bounded before they
run. One operation in between is short, so rendering ends within about the ten seconds. This is a
fence, not a prison: it is in process and does not limit what jinja2's parser itself costs, apart
from the template's length (1 MiB).

Rendering equals transformers' apply_chat_template (tests compare): same environment settings, same
`tojson`, `raise_exception`, `strftime_now`, `{% generation %}`, loop controls.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ..errors import InputError
from .config import read_json, read_text

MAX_SOURCE = 1 << 20
MAX_STEPS = 2_000_000
MAX_SECONDS = 10.0
MAX_TEXT = 16 << 20
MAX_PRODUCED = 256 << 20
# Widths, counts and precisions that a filter may be given.
MAX_ARGUMENT = 10_000
# Containers cost as much as this many characters an item, so that weighing one is cheap to bound.
ITEM_WEIGHT = 16

# Each can turn a short value into one longer by orders of magnitude, and no chat template we know
# uses any: simplest is not to have them.
_BANNED_FILTERS = ("center", "wordwrap", "urlize", "xmlattr", "filesizeformat", "pprint", "random")
_BANNED_METHODS = frozenset(
    ["center", "encode", "expandtabs", "format_map", "ljust", "rjust", "to_bytes", "translate"]
    + ["zfill"]
)
_SIZED_FILTERS = ("batch", "indent", "round", "slice", "truncate")


class _LimitError(Exception):
    """A template asks for more work than a chat template can need."""


class _Budget:
    """What one rendering may still spend."""

    def __init__(self) -> None:
        self.steps = MAX_STEPS
        self.produced = MAX_PRODUCED
        self.deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise _LimitError(f"more than {MAX_STEPS:,} steps")
        if time.monotonic() > self.deadline:
            raise _LimitError(f"more than {MAX_SECONDS:g} seconds")

    def charge(self, length: int) -> None:
        """Account for a value of `length` characters, made or about to be made."""
        if length > MAX_TEXT:
            raise _LimitError(f"a text of more than {MAX_TEXT:,} characters")
        self.produced -= length
        if self.produced < 0:
            raise _LimitError(f"more than {MAX_PRODUCED:,} characters of intermediate text")


_SIZED = (str, list, tuple)
_budget: ContextVar[_Budget] = ContextVar("budget")


@contextmanager
def _fresh_budget() -> Iterator[_Budget]:
    budget = _Budget()
    token = _budget.set(budget)
    try:
        yield budget
    finally:
        _budget.reset(token)


def _weigh(value: Any) -> int:
    """About as many characters as `value` has as text; _LimitError beyond MAX_TEXT.

    Shared parts count each time they are met, as they would be written each time.
    """
    weight = 0
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            weight += len(item)
        elif isinstance(item, Mapping):
            weight += ITEM_WEIGHT * len(item)
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, (list, tuple)):
            weight += ITEM_WEIGHT * len(item)
            pending.extend(item)
        elif isinstance(item, int):
            weight += item.bit_length() // 3
        if weight > MAX_TEXT:
            raise _LimitError(f"a text of more than {MAX_TEXT:,} characters")
    return weight


def _charge_result(result: Any) -> Any:
    if isinstance(result, str):
        _budget.get().charge(len(result))
    elif isinstance(result, (list, tuple, dict)):
        _budget.get().charge(ITEM_WEIGHT * len(result))
    return result


def _counted(iterable: Any) -> Iterator[Any]:
    """The loop variable's values, each paid for."""
    budget = _budget.get()
    for item in iterable:
        budget.step()
        yield item


def _concatenate(values: Sequence[Any]) -> str:
    """The `~` operator."""
    _weigh(list(values))
    return _charge_result("".join(map(str, values)))


def _materialise(value: Any) -> Any:
    """A generator's items as a list, which can be weighed; anything else as it is."""
    return list(_counted(value)) if isinstance(value, Iterator) else value


def _check_replace(text: str, old: str, new: str) -> None:
    times = text.count(old) if old else len(text) + 1
    _budget.get().charge(len(text) + times * len(new))


def _check_join(separator: Any, parts: Any) -> None:
    count = len(parts) if isinstance(parts, (str, list, tuple, dict)) else 0
    _budget.get().charge(_weigh(parts) + count * len(str(separator)))


def _check_format(pattern: str, weight: int) -> None:
    """`%` and str.format: no padding widths, and no argument repeated beyond the limit."""
    if re.search(r"%[^a-zA-Z%]*(\d{4}|\*)|:[^}]*(\d{4}|\{)", pattern):
        raise _LimitError("a padding width in a format")
    _budget.get().charge(len(pattern) + (pattern.count("%") + pattern.count("{")) * weight)


def _check_filter(name: str, subject: Any, arguments: Sequence[Any]) -> None:
    """Bound, before it runs, a filter whose result may outgrow its arguments."""
    weight = _weigh([subject, *arguments])
    if name in _SIZED_FILTERS and any(
        abs(value) > MAX_ARGUMENT for value in arguments if isinstance(value, int)
    ):
        raise _LimitError(f"an argument of {name} beyond {MAX_ARGUMENT:,}")
    if name == "replace" and len(arguments) > 1:
        _check_replace(str(subject), str(arguments[0]), str(arguments[1]))
    elif name == "join":
        _check_join(arguments[0] if arguments else "", subject)
    elif name == "indent":
        width = arguments[0] if arguments else 4
        width = width if isinstance(width, int) else len(str(width))
        _budget.get().charge((str(subject).count("\n") + 1) * abs(width))
    elif name == "format":
        _check_format(str(subject), weight)
    elif name == "sum" and any(isinstance(value, (list, tuple)) for value in arguments):
        # Adding lists one by one copies the sum each time.
        raise _LimitError("a sum of lists")


def _guard_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # wraps() copies jinja's mark of filters that take the environment first; skip that argument.
    skip = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _budget.get().step()
        first, subject, rest = args[:skip], args[skip], args[skip + 1 :]
        if name == "join":
            subject = _materialise(subject)
        _check_filter(name, subject, [*rest, *kwargs.values()])
        return _charge_result(function(*first, subject, *rest, **kwargs))

    return guarded


class _Accountant(NodeTransformer):
    """Routes what the sandbox cannot intercept, loops and `~`, through filters of ours."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja's naming
        self.generic_visit(node)
        node.iter = _filter(node.iter, " counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), " concatenate")


def _filter(value: Any, name: str) -> nodes.Filter:
    # The blank in the name keeps it out of a template's reach.
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; its body is just rendered."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The immutable sandbox, with every operation on the budget."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _Generation],
            finalize=_finalize,
            # Folding constants would run filters while compiling.
            optimized=False,
        )
        self.filters = {
            name: _guard_filter(name, function)
            for name, function in {**self.filters, "tojson": _tojson}.items()
            if name not in _BANNED_FILTERS
        }
        self.filters |= {" counted": _counted, " concatenate": _concatenate}
        self.globals.pop("lipsum")
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _dict,
        }

    def concat(self, parts: Iterable[str]) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Text of a macro, a block or the whole output."""
        collected = []
        for part in parts:
            _budget.get().charge(len(part) + ITEM_WEIGHT)
            collected.append(part)
        text = "".join(collected)
        _budget.get().charge(len(text))
        return text

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        return super()._generate(_Accountant().visit(source), name, filename, defer_init)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _BANNED_METHODS and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        safe = super().wrap_str_format(value)
        if safe is None:
            return None
        pattern = str(value.__self__)

        def checked(*args: Any, **kwargs: Any) -> str:
            _check_format(pattern, _weigh([*args, *kwargs.values()]))
            return safe(*args, **kwargs)

        return checked

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902,N805
        _budget.get().step()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name == "join" and args:
            args = (_materialise(args[0]), *args[1:])
            _check_join(owner, args[0])
        elif isinstance(owner, str) and name == "replace" and len(args) > 1:
            _check_replace(owner, str(args[0]), str(args[1]))
        return _charge_result(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _budget.get().step()
        if operator == "%" and isinstance(left, str):
            _check_format(left, _weigh(right))
        elif operator == "*":
            _check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _budget.get().charge(left.bit_length() * abs(right) * ITEM_WEIGHT)
        elif operator == "+" and isinstance(left, _SIZED) and isinstance(right, _SIZED):
            _budget.get().charge(len(left) + len(right))
        return _charge_result(super().call_binop(context, operator, left, right))


def _check_product(left: Any, right: Any) -> None:
    for count, value in ((left, right), (right, left)):
        if not isinstance(count, int):
            continue
        if isinstance(value, int):
            _budget.get().charge((count.bit_length() + value.bit_length()) * ITEM_WEIGHT)
        elif isinstance(value, _SIZED):
            unit = 1 if isinstance(value, str) else ITEM_WEIGHT
            _budget.get().charge(max(count, 0) * len(value) * unit)


def _finalize(value: Any) -> Any:
    """A value on its way into the output: containers must be weighed before str() unrolls them."""
    _budget.get().step()
    if isinstance(value, (list, tuple, dict)):
        _budget.get().charge(_weigh(value))
    return value


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: not escaped for HTML, not for ASCII."""
    if isinstance(indent, int) and indent > 16 or isinstance(indent, str):
        raise _LimitError("an indentation of more than 16")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(str(message)[:500])


def _strftime_now(pattern: str) -> str:
    """The current local time. A width, as in `%9999d`, is refused: libc would pad that far."""
    if len(pattern) > 256 or re.search(r"%[^a-zA-Z%]*\d", pattern):
        raise _LimitError("a padding width in a date format")
    return datetime.now().strftime(pattern)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    # Not the type itself: its attributes are of no use to a template.
    return dict(*args, **kwargs)


class ChatTemplate:
    """One compiled chat template. `origin` is the file it came from, for messages."""

    def __init__(self, source: str, origin: str | Path) -> None:
        self.source = source
        self.origin = str(origin)
        if len(source) > MAX_SOURCE:
            raise InputError(f"{self.origin}: chat template of more than {MAX_SOURCE:,} characters")
        environment = _Environment()
        with _fresh_budget(), self._one_line_errors():
            # The file name makes tracebacks point at the template's own lines.
            code = environment.compile(source, filename=_CODE_NAME)
            self._template = jinja2.Template.from_code(environment, code, environment.globals)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for `messages` ({"role", "content", ...} each), as transformers renders it.

        `variables` are what else the template may ask for: bos_token, enable_thinking, documents.
        Raises InputError naming the template's file and line if it fails, refuses the messages, or
        exceeds the limits above.
        """
        if "messages" in variables:
            raise InputError("a chat template's variable `messages` is the conversation itself")
        try:
            values = {
                "messages": [_message(m) for m in messages],
                "tools": _plain(tools),
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
                **_plain(variables),
            }
        except RecursionError:
            raise InputError("chat messages, tools or variables are nested too deeply") from None
        with _fresh_budget(), self._one_line_errors():
            return self._template.render(values)

    @contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        """A template can fail in any way that Python can, and all of them are bad input."""
        try:
            yield
        except _LimitError as error:
            reason = f"it needs {error}, more than a chat template may"
            raise InputError(f"{self._place(error)}: {reason}; refused") from None
        except SecurityError as error:
            raise InputError(f"{self._place(error)}: unsafe, so refused: {_line(error)}") from None
        except jinja2.TemplateSyntaxError as error:
            raise InputError(
                f"{self.origin}, line {error.lineno}: chat template is broken: {_line(error)}"
            ) from None
        except (Exception, RecursionError, MemoryError) as error:
            plain = isinstance(error, jinja2.TemplateError)
            reason = _line(error) if plain else f"{type(error).__name__}: {_line(error)}"
            raise InputError(f"{self._place(error)}: chat template failed: {reason}") from None

    def _place(self, error: BaseException) -> str:
        """The template's file and, where the traceback knows it, the line."""
        line = None
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _CODE_NAME:
                line = trace.tb_lineno
            trace = trace.tb_next
        return self.origin if line is None else f"{self.origin}, line {line}"


_CODE_NAME = "<chat template>"


def _line(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message in plain JSON types, absent instead of null, with its reasoning under the names
    that templates read; as transformers 5 prepares messages."""
    plain = {key: value for key, value in _plain(message).items() if value is not None}
    names = ("reasoning_content", "thinking", "reasoning")
    reasoning = next((plain[name] for name in names if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _plain(value: Any) -> Any:
    """A copy in JSON types only: other objects have methods that the sandbox knows nothing of."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise InputError(
        "chat messages and tools may hold text, numbers, lists and objects, "
        f"not {type(value).__name__}"
    )


def load_chat_template(
    folder: Path, config: Mapping[str, Any], name: str | None = None
) -> ChatTemplate | None:
    """The folder's chat template, or None. `config` is tokenizer_config.json's content.

    In transformers' order: chat_template.jinja, chat_template.json, then tokenizer_config.json,
    whose `chat_template` may be a list of {"name", "template"}: `name`, else "default", is taken.
    """
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return ChatTemplate(read_text(jinja), jinja)
    for path, fields in (
        (folder / "chat_template.json", None),
        (folder / "tokenizer_config.json", config),
    ):
        if fields is None:
            fields = read_json(path) if path.is_file() else {}
        found = fields.get("chat_template")
        if found is not None:
            return ChatTemplate(_choose(found, name, path), path)
    return None


def _choose(found: Any, name: str | None, path: Path) -> str:
    if isinstance(found, list):
        try:
            found = {entry["name"]: entry["template"] for entry in found}
        except (TypeError, KeyError):
            raise InputError(f"{path}: field 'chat_template' must list name and template") from None
    if isinstance(found, dict):
        chosen = found.get(name) if name in found else found.get("default")
        if chosen is None:
            listed = ", ".join(map(ascii, found))
            raise InputError(f"{path}: no chat template named 'default'; there are: {listed}")
        found = chosen
    if not isinstance(found, str):
        raise InputError(f"{path}: field 'chat_template' must be a string or a list of templates")
    return found
