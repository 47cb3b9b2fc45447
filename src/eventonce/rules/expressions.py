"""The parser of key parts: the text of dotted paths, and of a few functions over them, to a tree.

`parts` finds the values of the paths in an event, and evaluates the trees.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, TypeVar

import msgspec

from eventonce.rules.instants import duration

Root = Literal["detail", "body", "envelope", "headers", "event"]

EVENT_NAMES: Final = ("id", "source", "type", "time", "org")
"""The names of the values that the envelope reader finds in every form of event."""

TIME_FORMS: Final = ("s", "ms", "iso")


class Path(msgspec.Struct, frozen=True):
    """The place of a value: a root, and the names to follow from it."""

    root: Root
    steps: tuple[str, ...]
    optional: bool = False


class Hash(msgspec.Struct, frozen=True):
    """The canonical hash of the JSON value at a path."""

    of: Path


class Topic(msgspec.Struct, frozen=True):
    """One dot-separated segment of the Genesys topic name, counted from 0."""

    index: int
    of: Path


class Time(msgspec.Struct, frozen=True):
    """An instant in milliseconds, rounded down to a multiple of the width."""

    of: Moment
    form: str = ""
    width: int = 1


class Max(msgspec.Struct, frozen=True):
    """The largest of the values that the event has; times are compared as instants."""

    of: tuple[Moment, ...]


class Field(msgspec.Struct, frozen=True):
    """The place of a value in an item of a list."""

    steps: tuple[str, ...]
    optional: bool = False


class Each(msgspec.Struct, frozen=True):
    """The named fields of every item of a list, sorted: the order of the list does not matter."""

    of: Path
    fields: tuple[Field, ...] = ()
    """Empty if the items are single values themselves."""


Moment = Path | Time | Max
"""An expression that may be a time, or another order of a version."""

Expression = Path | Hash | Topic | Time | Max | Each

T = TypeVar("T", bound=Expression)

_TOKEN: Final = re.compile(
    r"""\s*(?: (?P<quoted>"(?:[^"\\]|\\.)*") | (?P<mark>[().,?]) | (?P<word>[^\s().,?"]+) )""",
    re.VERBOSE | re.DOTALL,
)
_FUNCTIONS: Final = ("hash", "topic", "time", "floor", "max", "each")
_EXPECTED: Final = (
    "a path begins with detail., body., envelope. or headers., or is one of "
    + ", ".join((*EVENT_NAMES, "topic"))
)


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Return the tree of one expression; the ValueError of a wrong one says what is wrong."""
    parser = _Parser(text)
    tree = parser.expression()
    parser.end()
    return tree


@lru_cache(maxsize=4096)
def parse_path(text: str) -> Path:
    """Return the path in this text, which may be a whole root such as `detail`."""
    parser = _Parser(text)
    path = parser.path()
    parser.end()
    return path


def paths(tree: Expression) -> tuple[Path, ...]:
    """Return every path that the expression reads, in the order of the text."""
    match tree:
        case Path():
            return (tree,)
        case Max(of=parts):
            return tuple(path for part in parts for path in paths(part))
        case _:
            return paths(tree.of)


class _Parser:
    """The tokens of one text, and the position of the parser."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        position = 0
        stripped = text.rstrip()
        while position < len(stripped):
            match = _TOKEN.match(stripped, position)
            if not match:
                raise self.wrong(f"cannot read {stripped[position:][:20]!r}")
            self.tokens.append((match.lastgroup or "", match[match.lastgroup or 0]))
            position = match.end()
        self.next = 0

    def wrong(self, reason: str) -> ValueError:
        return ValueError(f"{self.text!r}: {reason}")

    def peek(self, ahead: int = 0) -> tuple[str, str]:
        place = self.next + ahead
        return self.tokens[place] if place < len(self.tokens) else ("end", "the end")

    def take(self) -> tuple[str, str]:
        token = self.peek()
        self.next += 1
        return token

    def mark(self, expected: str) -> None:
        kind, token = self.take()
        if kind != "mark" or token != expected:
            raise self.wrong(f"expected {expected!r}, found {token}")

    def skip(self, mark: str) -> bool:
        if self.peek() == ("mark", mark):
            self.next += 1
            return True
        return False

    def end(self) -> None:
        if self.next < len(self.tokens):
            raise self.wrong(f"nothing may follow, found {self.peek()[1]!r}")

    def expression(self) -> Expression:
        if self.peek()[0] == "word" and self.peek(1) == ("mark", "("):
            tree = self.call()
            if self.skip("?"):
                return made_optional(tree)
            return tree
        path = self.path()
        if not path.steps:
            raise self.wrong(f"{path.root} is not a single value; write hash({path.root})")
        return path

    def path(self) -> Path:
        steps = self.steps()
        root = steps[0]
        optional = self.skip("?")
        if len(steps) == 1 and root in EVENT_NAMES:
            return Path("event", steps, optional)
        if steps == ("topic",):
            return Path("detail", ("topicName",), optional)
        match root:
            case "detail" | "body" | "envelope":
                return Path(root, steps[1:], optional)
            case "headers" if len(steps) == 2:
                return Path("headers", (steps[1].lower(),), optional)
            case "headers":
                raise self.wrong("a header is written headers.name")
        raise self.wrong(f"unknown name {'.'.join(steps)!r}: {_EXPECTED}")

    def steps(self) -> tuple[str, ...]:
        steps = [self.step()]
        while self.skip("."):
            steps.append(self.step())
        return tuple(steps)

    def step(self) -> str:
        kind, token = self.take()
        if kind == "quoted":
            return re.sub(r"\\(.)", r"\1", token[1:-1], flags=re.DOTALL)
        if kind != "word":
            raise self.wrong(f"expected a name, found {token}")
        return token

    def call(self) -> Expression:
        _, name = self.take()
        self.mark("(")
        match name:
            case "hash":
                tree: Expression = Hash(self.path())
            case "topic":
                tree = Topic(self.integer(), Path("detail", ("topicName",)))
            case "time":
                inner = self.moment()
                tree = Time(inner, self.time_form() if self.skip(",") else "")
            case "floor":
                inner = self.moment()
                self.mark(",")
                tree = Time(inner, width=self.width())
            case "max":
                parts = [self.moment()]
                while self.skip(","):
                    parts.append(self.moment())
                tree = Max(tuple(parts))
            case "each":
                items = self.path()
                fields = []
                while self.skip(","):
                    fields.append(Field(self.steps(), self.skip("?")))
                tree = Each(items, tuple(fields))
            case _:
                raise self.wrong(f"unknown function {name!r}: there are {', '.join(_FUNCTIONS)}")
        self.mark(")")
        return tree

    def moment(self) -> Moment:
        tree = self.expression()
        if isinstance(tree, (Path, Time, Max)):
            return tree
        raise self.wrong("expected a path, or one of time, floor and max")

    def string(self) -> str:
        kind, token = self.take()
        if kind != "quoted":
            raise self.wrong(f"expected a string in double quotes, found {token}")
        return token[1:-1]

    def integer(self) -> int:
        _, token = self.take()
        if not (token.isascii() and token.isdigit()):
            raise self.wrong(f"expected a segment's number, counted from 0, found {token}")
        return int(token)

    def time_form(self) -> str:
        form = self.string()
        if form not in TIME_FORMS:
            raise self.wrong(f'expected "s", "ms" or "iso", found "{form}"')
        return form

    def width(self) -> int:
        text = self.string()
        try:
            width = duration(text)
        except ValueError as error:
            raise self.wrong(str(error)) from None
        if not width:
            raise self.wrong("the width must be greater than 0")
        return width


def made_optional(tree: T) -> T:
    """Return the same expression, absent if the value that it reads is absent."""
    if isinstance(tree, Path):
        return msgspec.structs.replace(tree, optional=True)
    if isinstance(tree, Max):
        return msgspec.structs.replace(tree, of=tuple(made_optional(part) for part in tree.of))
    return msgspec.structs.replace(tree, of=made_optional(tree.of))
