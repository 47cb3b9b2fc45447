"""A rule as people write it: what it matches, and what makes two events the same.

`check` checks it, `rulefile` reads it from TOML, `ruleset` asks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from eventonce.errors import ConfigError
from eventonce.rules.check import Millis, checked
from eventonce.rules.matching import Match

Strings = str | Sequence[str]
Duration = str | float

Missing = Literal["invalid", "hash", "id", "run"]
"""What becomes of an event whose key has a hole: kept as a dead letter; keyed by its content; keyed
by its transport id; or, where it has none, run at every delivery."""

EVERYTHING: Final = Match()


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What makes two events the same: a fact by its `key`, or a state by `subject` and `order`.

    Durations are kept in milliseconds, lists as tuples; ConfigError names every fault at once.
    """

    name: str
    match: Match = EVERYTHING
    requires: tuple[str, ...] = ()
    """Paths that must lead to something (not null, not blank) for the rule to apply."""
    scope: str = ""
    """What stands in the key in place of the event's type, so that a rule can span types."""
    key: tuple[str, ...] = ()
    subject: tuple[str, ...] = ()
    order: str = ""
    state: tuple[str, ...] = ()
    unchanged_within: int = Millis(0)
    at: str = ""
    ignore: tuple[str, ...] = ()
    verify: bool | tuple[str, ...] = False
    missing: Missing = "invalid"
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
