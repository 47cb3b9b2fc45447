"""A rule as people write it: the events that it takes, the parts that make two events the same, and
the faults of a wrong rule. `tomltext` reads rules from TOML, `ruleset` applies them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from eventonce.errors import ConfigError
from eventonce.rules.expressions import Path, parse, parse_path
from eventonce.rules.instants import duration
from eventonce.rules.readings import read_anyway, redactable
from eventonce.types import FORM_NAMES

Strings = str | Sequence[str]
Duration = str | float

Missing = Literal["invalid", "hash", "id", "run"]
"""The treatment of an event whose key lacks a part: it is kept as a dead letter; keyed by its
content; keyed by its transport id; or keyed by that id, and without one run at every delivery."""

Faults = list[tuple[str, str]]
"""Fields, each with its fault."""

MAX_ATTEMPTS: Final = 1_000_000


class Millis(int):
    """A duration already in milliseconds: a bare number means seconds."""


class Match(msgspec.Struct, frozen=True):
    """Globs over fields of the envelope; one matching glob of a list is enough."""

    type: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    form: tuple[str, ...] = ()

    def fits(self, form: str, source: str, type: str) -> bool:
        """Whether all three match; an empty list matches everything."""
        return (
            _any_fits(self.form, form)
            and _any_fits(self.source, source)
            and _any_fits(self.type, type)
        )


@lru_cache(maxsize=4096)
def glob(pattern: str) -> re.Pattern[str]:
    """Compile a glob: `*` matches any characters, also dots; all others match themselves."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def _any_fits(globs: Sequence[str], text: str) -> bool:
    return not globs or any(glob(pattern).fullmatch(text) for pattern in globs)


EVERYTHING: Final = Match()


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule, which decides whether two events are the same. A fact has a `key`, a state a
    `subject` and an `order`.

    Durations are stored in milliseconds, lists as tuples. One ConfigError names all faults.
    """

    name: str
    match: Match = EVERYTHING
    requires: tuple[str, ...] = ()
    """Paths at which the event must have a value (not null, not blank) for the rule to apply."""
    scope: str = ""
    """The word in the key in place of the event's type, so that a rule can span types."""
    key: tuple[str, ...] = ()
    subject: tuple[str, ...] = ()
    order: str = ""
    state: tuple[str, ...] = ()
    unchanged_within: int = Millis(0)
    at: str = ""
    ignore: tuple[str, ...] = ()
    redact: tuple[str, ...] = ()
    """Paths of values that are not kept: a dead letter has `[redacted]` in their place."""
    verify: bool | tuple[str, ...] = False
    missing: Missing = "invalid"
    remember: int = Millis(864_000_000)
    """Ten days: a re-publish comes up to four days late, EventBridge retries for one more, and a
    queue keeps four by default."""
    sliding: bool = False
    keep_result: int | None = None
    """The time for which a handler's result is kept for copies; None for `remember`."""
    lease: int = Millis(60_000)
    timeout: int = Millis(0)
    """The longest time of a handler; 0 for no limit."""
    attempts: int = 5
    on_store_error: Literal["retry", "run"] = "retry"
    on_replay: Literal["missing", "force", "report"] = "missing"
    shadow: bool = False
    also: tuple[str | tuple[str, ...], ...] = ()

    if TYPE_CHECKING:
        # The arguments have wider types than the fields.
        def __init__(
            self,
            *,
            name: str,
            match: Strings | Mapping[str, Strings] | Match = EVERYTHING,
            requires: Strings = (),
            scope: str = "",
            key: Strings = (),
            subject: Strings = (),
            order: str = "",
            state: Strings = (),
            unchanged_within: Duration = 0,
            at: str = "",
            ignore: Strings = (),
            redact: Strings = (),
            verify: bool | Strings = False,
            missing: str = "invalid",
            remember: Duration = "10d",
            sliding: bool = False,
            keep_result: Duration | None = None,
            lease: Duration = "60s",
            timeout: Duration = "0s",
            attempts: int = 5,
            on_store_error: str = "retry",
            on_replay: str = "missing",
            shadow: bool = False,
            also: Sequence[Strings] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        # Defaults need no check: there are many rules, and each sets few fields.
        defaults = zip(self.__struct_fields__, (..., *self.__struct_defaults__), strict=True)
        given = {
            name: value
            for name, default in defaults
            if (value := getattr(self, name)) is not default
        }
        kept, faults = checked(given)
        if faults:
            name = self.name if isinstance(self.name, str) else "?"
            lines = "".join(f"\n  {field}: {fault}" for field, fault in faults)
            raise ConfigError(f"rule {name!r}:{lines}")
        for field, value in kept.items():
            msgspec.structs.force_setattr(self, field, value)

    @property
    def kind(self) -> Literal["fact", "state"]:
        """The kind: a fact is dropped if it comes again, a state if a newer one was applied."""
        return "state" if self.subject else "fact"


def checked(given: Mapping[str, Any]) -> tuple[dict[str, Any], Faults]:
    """Return the fields as a rule stores them, and all faults."""
    kept, faults = each_checked(given)
    if not any(field == "name" for field, _ in faults) and not kept.get("name"):
        faults.append(("name", "the name is missing; reports and reasons show it"))
    faults.extend(_contradictions(kept, {field for field, _ in faults}))
    return kept, faults


def each_checked(given: Mapping[str, Any]) -> tuple[dict[str, Any], Faults]:
    """Return the same for single fields, which need not be a whole rule."""
    kept: dict[str, Any] = {}
    faults: Faults = []
    for field, value in given.items():
        check = _CHECKS.get(field)
        if check is None:
            from eventonce.rules.tomltext import meant  # noqa: PLC0415  only for error messages

            known = f"{meant(field, _CHECKS)}; there are {', '.join(_CHECKS)}"
            faults.append((field, f"there is no such field{known}"))
            continue
        try:
            kept[field] = check(value)
        except ValueError as error:
            faults.extend((field, fault) for fault in str(error).split("\n"))
    return kept, faults


def _contradictions(kept: Mapping[str, Any], wrong: set[str]) -> Faults:
    """Return the faults of fields that are valid alone and contradict each other."""
    found: Faults = []
    fact, state = kept.get("key"), kept.get("subject")
    if fact and state:
        found.append(("subject", "a rule has a key (a fact) or a subject (a state), not both"))
    if not fact and not state and not wrong & {"key", "subject"}:
        found.append(("key", "expected a key (a fact), or a subject and an order (a state)"))
    if state and not kept.get("order") and "order" not in wrong:
        found.append(("order", "a state needs an order, which says which version is newer"))
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
                ("also", any(isinstance(old, str) for old in kept.get("also", ()))),
            )
            if is_set
        )
    if kept.get("redact"):
        found.extend(
            ("redact", f"{text!r} is read by {said}; a dead letter needs it to make its key again")
            for text, said in read_anyway(kept)
        )
    return found


def _strings(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise ValueError(f"expected a string or a list of strings, not {_shown(value)}")


def _string(value: Any) -> str:
    # Keys and records are UTF-8, which cannot encode half of a surrogate pair.
    if isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value):
        return value
    raise ValueError(f"expected a string, not {_shown(value)}")


def _parsed(value: Any, parse: Callable[[str], object]) -> tuple[str, ...]:
    texts = _strings(value)
    faults = []
    for text in texts:
        try:
            parse(text)
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ValueError("\n".join(faults))
    return texts


def _expressions(value: Any) -> tuple[str, ...]:
    texts = _parsed(value, parse)
    if len(set(texts)) < len(texts):
        raise ValueError("names the same part twice")
    return texts


def _expression(value: Any) -> str:
    text = _string(value)
    if text:
        parse(text)
    return text


def _verify(value: Any) -> bool | tuple[str, ...]:
    return value if isinstance(value, bool) else _parsed(value, parse_path)


def _match(value: Any) -> Match:
    found = value if isinstance(value, Match) else _new_match(value)
    for pattern in found.form:
        if not any(map(glob(pattern).fullmatch, FORM_NAMES)):
            raise ValueError(
                f"no event has the form {pattern!r}; there are {', '.join(FORM_NAMES)}"
            )
    return found


def _new_match(value: Any) -> Match:
    if isinstance(value, Mapping):
        unknown = [str(name) for name in value if name not in Match.__struct_fields__]
        if unknown:
            raise ValueError(f"expected source, type or form, not {', '.join(unknown)}")
        return Match(**{name: _strings(globs) for name, globs in value.items()})
    return Match(type=_strings(value))


def _duration(value: Any) -> Millis:
    return value if isinstance(value, Millis) else Millis(duration(value))


def _positive_duration(value: Any) -> Millis:
    result = _duration(value)
    if not result:
        raise ValueError("must be greater than 0")
    return result


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"expected true or false, not {_shown(value)}")


def _attempts(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_ATTEMPTS:
        return value
    raise ValueError(f"expected a whole number from 1 to {MAX_ATTEMPTS}, not {_shown(value)}")


def _one_of(*choices: str) -> Callable[[Any], str]:
    def choose(value: Any) -> str:
        if value in choices:
            return str(value)
        raise ValueError(
            f"expected {' or '.join(repr(choice) for choice in choices)}, not {_shown(value)}"
        )

    return choose


def _also(value: Any) -> tuple[str | tuple[str, ...], ...]:
    if isinstance(value, (list, tuple)):
        return tuple(
            _legacy(item) if isinstance(item, str) else _expressions(item) for item in value
        )
    raise ValueError(f"expected a list of older keys, each a list of parts, not {_shown(value)}")


def _legacy(text: str) -> str:
    legacy_path(text)
    return text


def legacy_path(text: str) -> Path:
    """Return the path of `sha256(path)`: a key of a table that users made themselves."""
    if text.startswith("sha256(") and text.endswith(")"):
        return parse_path(text[len("sha256(") : -1])
    raise ValueError(
        f'{text!r}: expected a list of parts, or "sha256(detail)" for a table you already have'
    )


def _shown(value: Any) -> str:
    return repr(value)[:60]


_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "name": _string,
    "match": _match,
    "requires": partial(_parsed, parse=parse_path),
    "scope": _string,
    "key": _expressions,
    "subject": _expressions,
    "order": _expression,
    "state": _expressions,
    "unchanged_within": _duration,
    "at": _expression,
    "ignore": partial(_parsed, parse=parse_path),
    "redact": partial(_parsed, parse=redactable),
    "verify": _verify,
    "missing": _one_of("invalid", "hash", "id", "run"),
    "remember": _positive_duration,
    "sliding": _flag,
    "keep_result": lambda value: None if value is None else _duration(value),
    "lease": _positive_duration,
    "timeout": _duration,
    "attempts": _attempts,
    "on_store_error": _one_of("retry", "run"),
    "on_replay": _one_of("missing", "force", "report"),
    "shadow": _flag,
    "also": _also,
}
