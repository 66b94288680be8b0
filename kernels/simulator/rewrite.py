"""Metal source to C++17, token by token; every token stays on its line.

Three things have no C++ spelling that a macro could give: attributes, threadgroup variables, and
overloads that differ in nothing but the address space. A source that is only checked (`syntax`)
keeps its address spaces, but needs help with vectors (see include/sim/vector_syntax.h).
"""

import re
from collections.abc import Iterator, Mapping

_TOKEN = re.compile(
    r"""(?P<directive>^[ \t]*\#(?:\\\n|[^\n])*)
      | (?P<space>[ \t\r\f]+|\n|\\\n|//[^\n]*|/\*.*?\*/)
      | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<word>[A-Za-z_]\w*)
      | (?P<number>\.?\d(?:[eE][+-]|[\w.])*)
      | (?P<mark>::|->|\[\[|.)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_FUNCTION_CONSTANT = re.compile(
    r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\(\s*(\w+)\s*\)\s*\]\]"
)
_VECTOR = re.compile(
    r"(?:char|uchar|short|ushort|int|uint|long|ulong|half|float|bfloat|bool)[234]$"
)
_SPACES = {"device", "threadgroup", "constant", "thread"}
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


class RewriteError(ValueError):
    """Metal source in a form that the rewriter does not know."""


def rewrite(source: str, constants: Mapping[int, int | bool], syntax: bool = False) -> str:
    """C++ for `source`; `constants` are the values of its function constants."""
    source = _FUNCTION_CONSTANT.sub(lambda match: _constant(match, constants), source)
    tokens = _Tokens(source)
    tokens.strip_attributes()
    tokens.declare_threadgroup_variables(syntax)
    if syntax:
        tokens.construct_vectors()
    else:
        tokens.drop_space_overloads()
    return "".join(tokens.text)


def _constant(match: re.Match[str], constants: Mapping[int, int | bool]) -> str:
    kind, name, number = match.groups()
    if not number.isdigit() or int(number) not in constants:
        raise RewriteError(f"function constant {number} ({name}) has no value")
    return f"constant constexpr {kind} {name} = {str(constants[int(number)]).lower()}"


class _Tokens:
    """The tokens of a source, edited in place; `solid` are the places that grammar sees."""

    def __init__(self, source: str) -> None:
        found = list(_TOKEN.finditer(source))
        self.text = [match.group() for match in found]
        kinds = [match.lastgroup for match in found]
        self.solid = [i for i, kind in enumerate(kinds) if kind not in ("space", "directive")]

    def at(self, place: int) -> str:
        """The solid token number `place`; "" beyond the ends."""
        return self.text[self.solid[place]] if 0 <= place < len(self.solid) else ""

    def put(self, place: int, text: str) -> None:
        self.text[self.solid[place]] = text

    def blank(self, first: int, last: int) -> None:
        """Remove solid tokens first..last and what lies between, but keep the line breaks."""
        for i in range(self.solid[first], self.solid[last] + 1):
            self.text[i] = "\n" * self.text[i].count("\n")

    def closing(self, place: int) -> int:
        """The place of the bracket that closes the one at `place`; -1 where none does."""
        opening = self.at(place)[0]
        closing, depth = _CLOSING[opening], 0
        for i in range(place, len(self.solid)):
            token = self.at(i)
            if token in (opening, opening * 2):
                depth += len(token)
            elif token == closing:
                depth -= 1
                if depth == 0:
                    return i
            elif opening == "<" and token in (";", "{", "}"):
                return -1
        return -1

    def strip_attributes(self) -> None:
        """Remove every [[...]]: where C++ allows attributes, it does not know Metal's."""
        for place in range(len(self.solid)):
            if self.at(place) == "[[":
                end = self.closing(place)
                if end < 0:
                    raise RewriteError("an attribute is not closed")
                self.blank(place, end)
        self.solid = [i for i in self.solid if self.text[i].strip()]

    def declare_threadgroup_variables(self, syntax: bool) -> None:
        """`threadgroup T a[2], b;` in a function: references to the runtime's memory.

        For a check they become static: clang allows no automatic variable in an address space, so
        one that is missed here is an error there.
        """
        number = 0
        for place, (type_end, names) in self._threadgroup_declarations(strict=not syntax):
            kind = self._between(place + 1, type_end)
            if syntax:
                self.put(place, "static threadgroup")
                continue
            declared = []
            for name, dimensions in names:
                number += 1
                declared.append(
                    f"auto& {name} = sim::threadgroup_variable<{kind}{dimensions}, {number}>"
                    f'("{name}")'
                )
            end = next(i for i in range(type_end, len(self.solid)) if self.at(i) == ";")
            self.blank(place, end - 1)
            self.put(place, "; ".join(declared))

    def _threadgroup_declarations(self, strict: bool) -> Iterator[tuple[int, tuple[int, list]]]:
        for place in range(len(self.solid)):
            starts = self.at(place - 1) in ("", ";", "{", "}", ")")
            if self.at(place) == "threadgroup" and starts:
                declaration = self._declaration(place + 1)
                if declaration is not None:
                    yield place, declaration
                elif strict:
                    self._require_pointer(place)

    def _require_pointer(self, place: int) -> None:
        """A variable that we left as it is would be private to each thread, silently."""
        end = next((i for i in range(place, len(self.solid)) if self.at(i) in "=;({"), place)
        if not {"*", "&"} & {self.at(i) for i in range(place, end)}:
            shown = self._between(place, end + 1)
            raise RewriteError(f"unknown form of a threadgroup variable: {shown}")

    def _declaration(self, place: int) -> tuple[int, list[tuple[str, str]]] | None:
        """(place of the first name, [(name, "[2][3]")]) of "T a[2][3], b;"; None for others."""
        first = place
        while True:
            if self.at(place) == "<":
                place = self.closing(place) + 1
                if place == 0:
                    return None
            elif self.at(place) == "::" or re.match(r"[A-Za-z_]", self.at(place)):
                if place > first and self.at(place + 1) in ("[", ";", ",", "[["):
                    break
                place += 1
            else:
                return None
        names, name_at = [], place
        while True:
            name, dimensions = self.at(place), ""
            place += 1
            while self.at(place) == "[":
                end = self.closing(place)
                dimensions += self._between(place, end + 1)
                place = end + 1
            names.append((name, dimensions))
            if self.at(place) == ";":
                return name_at, names
            if self.at(place) != ",":
                return None
            place += 1

    def _between(self, first: int, last: int) -> str:
        """Solid tokens first..last-1 on one line, with what lies between."""
        if first >= last:
            return ""
        text = "".join(self.text[self.solid[first] : self.solid[last - 1] + 1])
        return " ".join(re.sub(r"//[^\n]*", "", text).split())

    def drop_space_overloads(self) -> None:
        """Keep the first of the definitions that are one once address spaces are gone."""
        self._drop_in(0, len(self.solid))

    def _drop_in(self, place: int, end: int) -> None:
        """Look at the definitions in the scope first..end-1, and inside its classes."""
        seen: dict[str, str] = {}
        start = place
        while place < end:
            token = self.at(place)
            if token in (";", "}") or (token == ":" and self.at(place - 1) in _ACCESS):
                start = place + 1
            elif token in ("(", "["):
                place = self.closing(place)
            elif token == "{":
                last = self.closing(place)
                if last < 0:
                    raise RewriteError("a brace is not closed")
                self._drop_or_keep(start, place, last, seen)
                place, start = last, last + 1
            place += 1

    def _drop_or_keep(self, start: int, brace: int, last: int, seen: dict[str, str]) -> None:
        head = [self.at(i) for i in range(start, brace)]
        if "namespace" in head:
            self._drop_in(brace + 1, last)
            return
        is_class = "(" not in head and bool({"struct", "class", "union"} & set(head))
        if head and (is_class or "(" in head):
            raw, key = " ".join(head), " ".join(_without_spaces(head))
            if raw != seen.setdefault(key, raw):
                self.blank(start, last + (self.at(last + 1) == ";"))
                return
        if is_class:
            self._drop_in(brace + 1, last)

    def construct_vectors(self) -> None:
        """Send casts to vectors, and vec<T, N>(...), to `sim::cast` and `sim::make`."""
        for place in range(len(self.solid)):
            token = self.at(place)
            if token == "vec" and self.at(place + 1) == "<":
                end = self.closing(place + 1)
                if end > 0 and self.at(end + 1) == "(":
                    if self.at(place - 2) == "metal" and self.at(place - 1) == "::":
                        self.blank(place - 2, place - 1)
                    self.put(place, "sim::make<metal::vec")
                    self.put(end, ">>")
            elif token == "static_cast" and _VECTOR.match(self.at(place + 2)):
                self.put(place, "sim::make")
            elif self._is_vector_cast(place):
                self.put(place, "sim::cast<")
                self.put(place + 2, ">{}->*")

    def _is_vector_cast(self, place: int) -> bool:
        """Whether `(float4)` at `place` is a cast: it follows no value and precedes one."""
        if self.at(place) != "(" or self.at(place + 2) != ")":
            return False
        named = _VECTOR.match(self.at(place + 1)) and not _ends_value(self.at(place - 1))
        return bool(named and re.match(r"[\w(*.~!-]", self.at(place + 3)))


_ACCESS = {"public", "private", "protected"}


def _ends_value(token: str) -> bool:
    """Whether a parenthesis after `token` is a call rather than a cast."""
    return token != "return" and bool(re.match(r"[\w\])>]", token))


def _without_spaces(head: list[str]) -> list[str]:
    """A head as the compiler sees it without address spaces; `constant` is const."""
    words: list[str] = []
    for token in head:
        token = "const" if token == "constant" else token
        if token in _SPACES or (token == "const" and words[-1:] == ["const"]):
            continue
        words.append(token)
    return words
