"""A rule as people write it, checked: what it matches, and what makes two events the same.

`rules` compiles it and asks it; `rulefile` reads it from TOML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from eventonce.errors import ConfigError
from eventonce.expressions import Expression, Path, parse
from eventonce.instants import duration

Strings = str | Sequence[str]
Duration = str | float


class Millis(int):
    """A duration already in milliseconds: a bare number means seconds."""


class Match(msgspec.Struct, frozen=True):
    """Globs over what the envelope says, each list satisfied by any of its globs; `*` is anything."""

    type: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    form: tuple[str, ...] = ()

    def fits(self, form: str, source: str, type: str) -> bool:  # noqa: A002  the event's own word
        """Whether all three match; an empty list matches everything."""
        return (
            _any_fits(self.form, form)
            and _any_fits(self.source, source)
            and _any_fits(self.type, type)
        )


def glob(pattern: str) -> re.Pattern[str]:
    """A glob as an expression: `*` crosses dots, everything else stands for itself."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def _any_fits(globs: Sequence[str], text: str) -> bool:
    return not globs or any(glob(pattern).fullmatch(text) for pattern in globs)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What makes two events the same: a fact by its `key`, or a state by `subject` and `order`.

    Durations are kept in milliseconds, lists as tuples; ConfigError names every fault at once.
    """

    name: str
    match: Match = Match()
    requires: tuple[str, ...] = ()
    """Paths that must lead to something (not null, not "") for the rule to apply."""
    key: tuple[str, ...] = ()
    subject: tuple[str, ...] = ()
    order: str = ""
    state: tuple[str, ...] = ()
    unchanged_within: int = Millis(0)
    at: str = ""
    ignore: tuple[str, ...] = ()
    verify: bool | tuple[str, ...] = False
    missing: Literal["invalid", "hash"] = "invalid"
    remember: int = Millis(864_000_000)
    """Ten days: a re-publish comes up to four days late, EventBridge retries for one more, and a
    queue keeps four by default."""
    sliding: bool = False
    lease: int = Millis(60_000)
    attempts: int = 5
    on_store_error: Literal["retry", "run"] = "retry"
    on_replay: Literal["missing", "force", "report"] = "missing"
    shadow: bool = False
    also: tuple[str | tuple[str, ...], ...] = ()

    if TYPE_CHECKING:
        # What is accepted is wider than what is kept.
        def __init__(  # noqa: PLR0913  a rule has this many fields
            self,
            *,
            name: str,
            match: Strings | Mapping[str, Strings] | Match = Match(),
            requires: Strings = (),
            key: Strings = (),
            subject: Strings = (),
            order: str = "",
            state: Strings = (),
            unchanged_within: Duration = 0,
            at: str = "",
            ignore: Strings = (),
            verify: bool | Strings = False,
            missing: str = "invalid",
            remember: Duration = "10d",
            sliding: bool = False,
            lease: Duration = "60s",
            attempts: int = 5,
            on_store_error: str = "retry",
            on_replay: str = "missing",
            shadow: bool = False,
            also: Sequence[Strings] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        kept, faults = checked(given)
        if faults:
            name = self.name if isinstance(self.name, str) else "?"
            lines = "".join(f"\n  {field}: {fault}" for field, fault in faults)
            raise ConfigError(f"rule {name!r}:{lines}")
        for field, value in kept.items():
            msgspec.structs.force_setattr(self, field, value)

    @property
    def kind(self) -> Literal["fact", "state"]:
        """A fact is suppressed when it comes again, a state when a newer one was applied."""
        return "state" if self.subject else "fact"


Faults = list[tuple[str, str]]
"""Field and what is wrong with it."""

MAX_ATTEMPTS: Final = 1_000_000


def checked(given: Mapping[str, Any]) -> tuple[dict[str, Any], Faults]:
    """The fields as a rule keeps them, and every fault there is."""
    kept: dict[str, Any] = {}
    faults: Faults = []
    for field, value in given.items():
        check = _CHECKS.get(field)
        if check is None:
            faults.append((field, f"there is no such field; there are {', '.join(_CHECKS)}"))
            continue
        try:
            kept[field] = check(value)
        except ValueError as error:
            faults.extend((field, fault) for fault in str(error).split("\n"))
    if not any(field == "name" for field, _ in faults) and not kept.get("name"):
        faults.append(("name", "expected a name"))
    faults.extend(_contradictions(kept, {field for field, _ in faults}))
    return kept, faults


def _contradictions(kept: Mapping[str, Any], wrong: set[str]) -> Faults:
    """What is right by itself and wrong together."""
    found: Faults = []
    fact, state = kept.get("key"), kept.get("subject")
    if fact and state:
        found.append(("subject", "a rule has a key (a fact) or a subject (a state), not both"))
    if not fact and not state and not wrong & {"key", "subject"}:
        found.append(("key", "expected a key (a fact), or a subject and an order (a state)"))
    if state and not kept.get("order") and "order" not in wrong:
        found.append(("order", "a state needs an order: what makes one version newer than another"))
    if not state and not wrong & {"subject"}:
        found.extend(
            (field, "is for states: it needs a subject and an order")
            for field in ("order", "state", "unchanged_within")
            if kept.get(field)
        )
    if state:
        found.extend(
            (field, "is for facts; this rule has a subject")
            for field, is_set in (
                ("verify", kept.get("verify")),
                ("missing", kept.get("missing") == "hash"),
                ("on_store_error", kept.get("on_store_error") == "run"),
            )
            if is_set
        )
    return found


def _strings(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    msg = f"expected a string or a list of strings, not {_shown(value)}"
    raise ValueError(msg)


def _string(value: Any) -> str:
    if isinstance(value, str):
        # Keys and records are UTF-8, which has no place for half a character.
        if value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value):
            return value
    msg = f"expected a string, not {_shown(value)}"
    raise ValueError(msg)


def _expressions(value: Any) -> tuple[str, ...]:
    texts = _strings(value)
    faults = []
    for text in texts:
        try:
            parse(text)
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ValueError("\n".join(faults))
    if len(set(texts)) < len(texts):
        msg = "names the same part twice"
        raise ValueError(msg)
    return texts


def _expression(value: Any) -> str:
    text = _string(value)
    if text:
        parse(text)
    return text


def _paths(value: Any) -> tuple[str, ...]:
    texts = _strings(value)
    faults = []
    for text in texts:
        try:
            # As in hash(...), where a whole root may stand.
            path_of(text)
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ValueError("\n".join(faults))
    return texts


def path_of(text: str) -> Path:
    """The path this text is, which may be a whole root such as `detail`."""
    tree: Expression = parse(f"hash({text})")
    path = getattr(tree, "of", None)
    if not isinstance(path, Path):
        msg = f"{text!r}: expected a path"
        raise ValueError(msg)
    return path


def _verify(value: Any) -> bool | tuple[str, ...]:
    return value if isinstance(value, bool) else _paths(value)


def _match(value: Any) -> Match:
    if isinstance(value, Match):
        return value
    if isinstance(value, Mapping):
        unknown = [str(name) for name in value if name not in Match.__struct_fields__]
        if unknown:
            msg = f"expected source, type or form, not {', '.join(unknown)}"
            raise ValueError(msg)
        return Match(**{name: _strings(globs) for name, globs in value.items()})
    return Match(type=_strings(value))


def _duration(value: Any) -> Millis:
    return value if isinstance(value, Millis) else Millis(duration(value))


def _positive_duration(value: Any) -> Millis:
    result = _duration(value)
    if not result:
        msg = "expected more than nothing"
        raise ValueError(msg)
    return result


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    msg = f"expected true or false, not {_shown(value)}"
    raise ValueError(msg)


def _attempts(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_ATTEMPTS:
        return value
    msg = f"expected a whole number from 1 to {MAX_ATTEMPTS}, not {_shown(value)}"
    raise ValueError(msg)


def _one_of(*choices: str) -> Callable[[Any], str]:
    def choose(value: Any) -> str:
        if value in choices:
            return str(value)
        msg = f"expected {' or '.join(repr(choice) for choice in choices)}, not {_shown(value)}"
        raise ValueError(msg)

    return choose


def _also(value: Any) -> tuple[str | tuple[str, ...], ...]:
    if not isinstance(value, (list, tuple)):
        msg = f"expected a list of older keys, each a list of parts, not {_shown(value)}"
        raise ValueError(msg)
    return tuple(_legacy(item) if isinstance(item, str) else _expressions(item) for item in value)


def _legacy(text: str) -> str:
    legacy_path(text)
    return text


def legacy_path(text: str) -> Path:
    """Of `sha256(path)`, the path: a key as tables made by hand have it."""
    if text.startswith("sha256(") and text.endswith(")"):
        return path_of(text[len("sha256(") : -1])
    msg = f'{text!r}: expected a list of parts, or "sha256(detail)" for a table you already have'
    raise ValueError(msg)


def _shown(value: Any) -> str:
    return repr(value)[:60]


_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "name": _string,
    "match": _match,
    "requires": _paths,
    "key": _expressions,
    "subject": _expressions,
    "order": _expression,
    "state": _expressions,
    "unchanged_within": _duration,
    "at": _expression,
    "ignore": _paths,
    "verify": _verify,
    "missing": _one_of("invalid", "hash"),
    "remember": _positive_duration,
    "sliding": _flag,
    "lease": _positive_duration,
    "attempts": _attempts,
    "on_store_error": _one_of("retry", "run"),
    "on_replay": _one_of("missing", "force", "report"),
    "shadow": _flag,
    "also": _also,
}
