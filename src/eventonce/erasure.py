"""The erasure of one conversation: its dead letters, the results of its events, its decisions, and
the subjects that name it.

The records, which are digests, stay: a later copy must not run. After the erasure all places are
read again, and the places that this program cannot reach are named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from json import dumps
from typing import Final

import msgspec

from eventonce.aws.dlq import FoundLetter
from eventonce.aws.sqs import SCHEMES
from eventonce.core.masking import masked, scheme_of
from eventonce.core.ports import StoreAdmin
from eventonce.core.sealed import key_of_letter
from eventonce.history import Decision, History, Search
from eventonce.history.connection import POSTGRES_SCHEMES
from eventonce.history.decision import SHORTEST_ID, conversation_of, id_kept
from eventonce.history.digests import MARK
from eventonce.letters.selection import event_of, moment
from eventonce.letters.sources import LetterSource, QueueLetterSource
from eventonce.runtime.brief_results import result_key
from eventonce.types import Event

MOST_READ: Final = 1_000_000
"""The most decisions that are read: far more than a conversation or a key has."""

KEYS_AT_ONCE: Final = 1_000

_BEGIN: Final = rb"(?:(?<![0-9A-Za-z])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2}))"
"""The beginning of a word in JSON, also after an escape."""

OTHER_PLACES: Final = (
    "captures and taps, and the shadow log",
    "the log of this program, and of those around it",
    "the systems that the sinks wrote to",
    "queues, archives and dead-letter queues that events pass on their way",
    "backups, replicas and logs of the databases (docs/stores.md says how long each has them)",
)
"""The places of events that this program cannot reach."""


def not_reached(store: str, history: str, letters: str = "") -> tuple[str, ...]:
    """Return the places that cannot be reached, with this store, this history and this place of
    dead letters by their URIs."""
    tables = {
        "records, letters": store,
        "eventonce_history, eventonce_history_subjects": history,
    }
    elsewhere = letters and scheme_of(letters) not in SCHEMES
    return (
        *OTHER_PLACES,
        *([f"dead letters in {masked(letters)}: only SQS queues are read"] if elsewhere else []),
        *(
            f"free pages of PostgreSQL: the bytes of a deleted row of {names} stay there until "
            f"others are written over them, after a VACUUM too; VACUUM FULL {names} removes them"
            for names, uri in tables.items()
            if scheme_of(uri) in POSTGRES_SCHEMES
        ),
    )


class Part(msgspec.Struct, frozen=True):
    """The number of dead letters, results or decisions of the conversation in one place."""

    what: str
    found: int
    left: int | None = None
    """The number after the erasure; None before it."""


class Erasure(msgspec.Struct, frozen=True):
    """The report: the data of the conversation that was found, and the data that is left."""

    parts: tuple[Part, ...]
    mentioned: tuple[str, ...] = ()
    """Ids of dead letters that stay, because they are or may be about another conversation: they
    have this id in their text, or have no conversation and the key of one of its events."""
    reasons: int = 0
    """Decisions about other conversations that have this id in their reasons; they stay."""
    unclear: int = 0
    """The number of `mentioned` that name no other conversation: they may be about this one."""
    types: int = 0
    """Types of events in the history that have the id in their name or source."""
    files: tuple[str, ...] = ()
    """Files that may still have erased bytes, and why."""
    closed: int = 0
    """Dead letters that no key of the file opens: they may be about this conversation."""
    hidden: int = 0
    """Decisions under a secret that the file does not name: they may be about this conversation."""
    away: bool = False
    """Whether the history that the file names does not exist."""
    untold: bool = False
    """Whether there may be results of events that have no decision."""
    unknown: tuple[str, ...] = ()
    """Data that could not be searched, and why."""

    @property
    def left(self) -> int:
        """The number of items that should have been erased and are still there."""
        return sum(part.left or 0 for part in self.parts)

    @property
    def unread(self) -> str:
        """The data that may be about the conversation and could not be read, in words; or empty."""
        parts = {"dead letter": self.closed, "decision": self.hidden}
        said = [f"{many} {what}{'s' * (many > 1)}" for what, many in parts.items() if many]
        others = {
            "the history": self.away,
            "the results of events without a decision": self.untold and not self.away,
        }
        return " and ".join([*said, *(what for what, true in others.items() if true)])

    @property
    def proved(self) -> bool:
        """Whether nothing of the conversation is left in the places that this program reaches."""
        return not (self.left or self.files or self.unread or self.unclear or self.types)


class Conversation:
    """Everything that is kept about one conversation, in a store, a queue and a history."""

    def __init__(
        self,
        id: str,
        admin: StoreAdmin,
        places: Sequence[Callable[[], LetterSource]],
        history: History | None,
        away: str = "",
        results: int = 0,
    ) -> None:
        """`places` open the places of dead letters, each time anew: a queue hides messages that
        were read until it is closed. `away` says why the history does not exist. `results` are
        the most milliseconds for which a result is kept."""
        self._id = id
        self._name = id_kept(id)
        self._telling = len(id) >= SHORTEST_ID
        """Whether the id is long enough not to be a common word or number."""
        # The JSON of a sender may have the id with escaped characters.
        spelled = {id.encode(), msgspec.json.encode(id)[1:-1], dumps(id)[1:-1].encode()}
        # Only a whole word: a short number is a part of many other numbers.
        self._spelled = re.compile(
            rb"%s(?:%s)(?![0-9A-Za-z])" % (_BEGIN, b"|".join(map(re.escape, spelled))),
            re.IGNORECASE,
        )
        self._admin = admin
        self._places = places
        self._history = history
        self._away = away
        self._results = results
        self._keys: dict[bytes, None] = {}
        """Keys of the conversation's events, from its decisions and its dead letters."""
        self._own: set[bytes] = set()
        """Keys of `_keys` that no other conversation has."""

    def look(self) -> Erasure:
        """Report the data of the conversation; nothing is changed."""
        decisions = self._decisions()
        self._keys |= {one.key: None for one in decisions if one.key}
        self._own |= self._own_keys(decisions)
        parts: list[Part] = []
        mentioned: list[str] = []
        sealed = hidden = unclear = 0
        unknown: list[str] = []
        for open_place in self._places:
            with open_place() as place:
                found, others, closed = self._letters(place)
            name = _named(place)
            self._keys |= {one.letter.key: None for one in found if one.letter.key}
            parts.append(Part(name, len(found)))
            mentioned += others
            unclear += sum(others.values())
            sealed += closed
            if closed:
                unknown.append(f"{closed} {name} that no key of the file opens")
            if isinstance(place, QueueLetterSource):
                unknown.append("messages of the queue that another reader holds now")
        records = (self._admin.show(key) for key in self._result_keys())
        with_result = sum(it is not None and it.result is not None for it in records)
        parts.append(Part("results", with_result))
        if self._history is None:
            if self._away:
                unknown.append(f"decisions: {self._away}")
            unknown.append(
                "results, and dead letters of a rule that redacts the id: without a history nobody "
                "knows which events it had"
            )
        else:
            parts += Part("decisions", len(decisions)), Part("subjects", len(self._subjects()))
            hidden = self._history.hidden("conversation", self._id)
            if hidden:
                unknown.append(
                    f"decisions whose ids are digests under {self._other_secret}: {hidden}, "
                    "the results of their events, and their dead letters where a rule redacts "
                    "the id"
                )
            unknown.append("events that run now, and decisions of the last second: run it again")
            begin = self._history.begin()
            since = f"before {moment(begin)}, where it begins" if begin else "of any time"
            unknown.append(f"results of events that the history does not have: those {since}")
        if self._name.startswith(MARK):
            unknown.append(
                "dead letters and decisions of others with the id in their text: it is "
                "a digest of the id that was given"
            )
        return Erasure(
            tuple(parts),
            tuple(mentioned),
            self._reasons(),
            unclear,
            self._types(),
            closed=sealed,
            hidden=hidden,
            away=bool(self._away),
            untold=self._results > 0
            and (self._history is None or not self._history.reaches_back(self._results)),
            unknown=tuple(unknown),
        )

    def erase(self, before: Erasure) -> Erasure:
        """Erase the data that `look` found, and look again. The dead letters and the history, which
        have the keys, come last: after an interruption, the erasure can be repeated."""
        keys = self._result_keys()
        for start in range(0, len(keys), KEYS_AT_ONCE):
            self._admin.clear_results(keys[start : start + KEYS_AT_ONCE])
        for open_place in self._places:
            with open_place() as place:
                found, _, _ = self._letters(place)
                if found:
                    place.drop(found)
        remains = [("store", _scrubbed(self._admin))]
        if self._history is not None:
            self._history.drop_subjects(self._subjects())
            self._history.forget(self._id, partly=True)
            remains.append(("history", self._history.scrub()))
        after = self.look()
        parts = [
            msgspec.structs.replace(part, left=now.found)
            for part, now in zip(before.parts, after.parts, strict=True)
        ]
        files = tuple(f"the file of the {it}: {why}" for it, why in remains if why)
        return msgspec.structs.replace(after, parts=tuple(parts), files=files)

    def _result_keys(self) -> list[bytes]:
        """Return the keys that may have results: of the events, and of their brief results."""
        return [it for key in self._keys for it in (key, result_key(key))]

    def _decisions(self) -> list[Decision]:
        if self._history is None:
            return []
        return self._history.find(Search(conversation=self._id), limit=MOST_READ, partly=True)

    @property
    def _other_secret(self) -> str:
        if self._name.startswith(MARK):
            return "another secret than the one that was given, or no digests"
        return "a secret that the file does not name"

    def _letters(self, place: LetterSource) -> tuple[list[FoundLetter], dict[str, bool], int]:
        """Return the conversation's dead letters in this place; the ids of dead letters that only
        mention it or share a key with it, each with whether its conversation is unclear; and the
        number of others that are sealed with a key that is not here."""
        found: list[FoundLetter] = []
        others: dict[str, bool] = {}
        closed = 0
        for batch in place.read():
            for one in batch:
                letter = one.letter
                whose = conversation_of(event_of(letter) or Event(letter.event, b""))
                # Without a conversation: it may be redacted, but the history knows its key.
                if self._has(whose) or (not whose and letter.key in self._own):
                    found.append(one)
                elif key_of_letter(letter):
                    closed += 1
                elif self._spelled.search(letter.event + b" " + letter.reason.encode()):
                    # A UUID is the same in upper case and lower case.
                    others[letter.id] = self._telling and whose.lower() in (
                        "",
                        self._name.lower(),
                    )
                elif not whose and letter.key in self._keys:
                    others[letter.id] = False
        return found, others, closed

    def _has(self, whose: str) -> bool:
        """Whether this is the conversation's id, given as it is or as the digest of the history."""
        if not whose or whose == self._name or not self._name.startswith(MARK):
            return whose == self._name
        return self._history is not None and self._name in self._history.names(whose)

    def _reasons(self) -> int:
        """Count the decisions about other conversations that have this id in their reasons."""
        if self._history is None:
            return 0
        own = self._history.names(self._id)
        found = self._history.find(Search(reason=self._id), limit=MOST_READ)
        return self._having([one.reason for one in found if one.conversation not in own])

    def _subjects(self) -> list[bytes]:
        """The keys of states whose subject has its id, whichever conversation their events are of.
        The digest of a subject that only has it among others stays: it tells no more than the key,
        which is a digest of the same."""
        if self._history is None:
            return []
        own = self._history.names(self._id, "subject")
        return self._history.subjects(lambda it: it in own or bool(self._having([it])))

    def _types(self) -> int:
        """Count the types of events that have this id in their name or source."""
        if self._history is None or not self._telling:
            return 0
        return self._having(map(" ".join, self._history.types()))

    def _having(self, texts: Iterable[str]) -> int:
        return sum(bool(self._spelled.search(text.encode())) for text in texts)

    def _own_keys(self, decisions: Sequence[Decision]) -> set[bytes]:
        """Return the keys that no other conversation has. Versions of one subject may belong to
        several conversations, or to none. All events of a fact belong to one: a decision about a
        fact without a conversation was redacted."""
        if self._history is None:
            return set()
        names = {one.conversation for one in decisions}
        return {
            key
            for key in {one.key for one in decisions if one.key}
            if all(
                one.conversation in names or (not one.conversation and one.version is None)
                for one in self._history.find(Search(key=key), MOST_READ)
            )
        }


def _named(place: LetterSource) -> str:
    return (
        "dead letters in the queue"
        if isinstance(place, QueueLetterSource)
        else "dead letters in the store"
    )


def _scrubbed(admin: StoreAdmin) -> str:
    """Return why deleted bytes may stay in the store's file; `not_reached` has the servers."""
    scrub: Callable[[], str] = getattr(admin, "scrub", str)
    return scrub()
