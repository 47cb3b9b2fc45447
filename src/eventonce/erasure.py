"""The erasure of one conversation: its dead letters, the results of its events, its decisions, and
the subjects that name it.

The records stay, which are digests: a copy that comes later must not run. What was done is looked
at again, and what cannot be reached from here is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from json import dumps
from typing import Final

import msgspec

from eventonce.aws.dlq import Held
from eventonce.core.masking import scheme_of
from eventonce.core.ports import StoreAdmin
from eventonce.core.sealed import key_of_letter
from eventonce.history import Decision, History, Search
from eventonce.history.decision import SHORT, conversation_of, id_kept
from eventonce.history.digests import MARK
from eventonce.history.recorder import POSTGRES
from eventonce.letters.selection import event_of, moment
from eventonce.letters.sources import LetterSource, QueueLetterSource
from eventonce.runtime.brief_results import result_key
from eventonce.types import Event

MOST: Final = 1_000_000
"""Decisions about one conversation: far more than any has."""

KEYS_AT_ONCE: Final = 1_000

_BEGIN: Final = rb"(?:(?<![0-9A-Za-z])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2}))"
"""The beginning of a word in JSON, also after an escape."""

OTHERS: Final = (
    "captures and taps, and the shadow log",
    "the log of this program, and of those around it",
    "the systems that the sinks wrote to",
    "queues, archives and dead-letter queues that events pass on their way",
    "backups, replicas and logs of the databases (docs/stores.md says how long each has them)",
)
"""What holds events and cannot be reached from here."""


def not_reached(store: str, history: str) -> tuple[str, ...]:
    """What of it there is beside this store and this history, by their URIs."""
    tables = {
        "records, letters": store,
        "eventonce_history, eventonce_history_subjects": history,
    }
    return (
        *OTHERS,
        *(
            f"free pages of PostgreSQL: the bytes of a deleted row of {names} stay there until "
            f"others are written over them, after a VACUUM too; VACUUM FULL {names} removes them"
            for names, uri in tables.items()
            if scheme_of(uri) in POSTGRES
        ),
    )


class Part(msgspec.Struct, frozen=True):
    """One kind of what was kept about the conversation."""

    what: str
    found: int
    left: int | None = None
    """How much of it is there after the erasure; None where nothing was erased yet."""


class Erasure(msgspec.Struct, frozen=True):
    """What there was, and what is left."""

    parts: tuple[Part, ...]
    mentioned: tuple[str, ...] = ()
    """Ids of dead letters that have the conversation's id somewhere, or name none and have the key
    of one of its events, and stay: they are about another conversation, or may be."""
    reasons: int = 0
    """Decisions of the same kind: the id is in their reasons, and they stay as long as any."""
    unclear: int = 0
    """How many of `mentioned` name no other conversation: they may be about this one."""
    types: int = 0
    """Types of events in the history that have the id in their name or source."""
    files: tuple[str, ...] = ()
    """Files that may still have bytes of what was erased, and why."""
    closed: int = 0
    """Dead letters that no key of the file opens: any of them may be about it."""
    hidden: int = 0
    """Decisions under a secret that the file does not name: any of them may be about it."""
    away: bool = False
    """Whether the file names a history that is not there."""
    untold: bool = False
    """Whether there may be results of events that no decision tells of."""
    unknown: tuple[str, ...] = ()
    """What could not be looked for, and why."""

    @property
    def left(self) -> int:
        """How much is left of what was to be erased."""
        return sum(part.left or 0 for part in self.parts)

    @property
    def unread(self) -> str:
        """The dead letters and decisions that may hold the conversation and could not be read, in
        words; empty for none."""
        parts = {"dead letter": self.closed, "decision": self.hidden}
        said = [f"{many} {what}{'s' * (many > 1)}" for what, many in parts.items() if many]
        others = {
            "the history": self.away,
            "the results of events without a decision": self.untold and not self.away,
        }
        return " and ".join([*said, *(what for what, true in others.items() if true)])

    @property
    def proved(self) -> bool:
        """Whether nothing is left of what was to be erased, as far as this command reaches."""
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
        """`places` open the places of dead letters, each time anew: a queue hides what was read
        until it is closed. `away` is a history that should be there, and is not. `results` are the
        milliseconds for which a result is kept at the most."""
        self._id = id
        self._name = id_kept(id)
        self._telling = len(id) >= SHORT
        """Whether the id is told from other words and numbers of a text."""
        # A sender's JSON may have it with its characters escaped.
        spelled = {id.encode(), msgspec.json.encode(id)[1:-1], dumps(id)[1:-1].encode()}
        # Not in the midst of a word: a short number is a part of many others.
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
        """Keys of its events: from its decisions and its dead letters."""
        self._own: set[bytes] = set()
        """Those of them that no other conversation has."""

    def look(self) -> Erasure:
        """What there is; nothing is changed."""
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
        """Erase what `look` has found, and look again. The dead letters and the history, which have
        the keys, come last: whoever is interrupted can begin again."""
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
        """The keys that may have results: the events' own, and those of brief results."""
        return [it for key in self._keys for it in (key, result_key(key))]

    def _decisions(self) -> list[Decision]:
        if self._history is None:
            return []
        return self._history.find(Search(conversation=self._id), limit=MOST, partly=True)

    @property
    def _other_secret(self) -> str:
        if self._name.startswith(MARK):
            return "another secret than the one that was given, or no digests"
        return "a secret that the file does not name"

    def _letters(self, place: LetterSource) -> tuple[list[Held], dict[str, bool], int]:
        """Its dead letters in this place; the ids of those that only have its id somewhere, or a
        key that it shares, each with whether it is unclear whose it is; and how many others are
        sealed with a key that is not here."""
        found: list[Held] = []
        others: dict[str, bool] = {}
        closed = 0
        for held in place.read():
            for one in held:
                letter = one.letter
                whose = conversation_of(event_of(letter) or Event(letter.event, b""))
                # One that names none may have been redacted, and the history knows whose it is.
                if self._has(whose) or (not whose and letter.key in self._own):
                    found.append(one)
                elif key_of_letter(letter):
                    closed += 1
                elif self._spelled.search(letter.event + b" " + letter.reason.encode()):
                    # A UUID in other letters is the same one.
                    others[letter.id] = self._telling and whose.lower() in (
                        "",
                        self._name.lower(),
                    )
                elif not whose and letter.key in self._keys:
                    others[letter.id] = False
        return found, others, closed

    def _has(self, whose: str) -> bool:
        """Whether this is its id; it may be given as the digest that the history shows."""
        if not whose or whose == self._name or not self._name.startswith(MARK):
            return whose == self._name
        return self._history is not None and self._name in self._history.names(whose)

    def _reasons(self) -> int:
        """How many decisions about others have its id in their reasons."""
        if self._history is None:
            return 0
        own = self._history.names(self._id)
        found = self._history.find(Search(reason=self._id), limit=MOST)
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
        """How many types of events have its id in their name or source."""
        if self._history is None or not self._telling:
            return 0
        return self._having(map(" ".join, self._history.types()))

    def _having(self, texts: Iterable[str]) -> int:
        return sum(bool(self._spelled.search(text.encode())) for text in texts)

    def _own_keys(self, decisions: Sequence[Decision]) -> set[bytes]:
        """The keys that no other conversation has: versions of one subject may be of many, or of
        none. All events of a fact are the same one: what names none was redacted."""
        if self._history is None:
            return set()
        names = {one.conversation for one in decisions}
        return {
            key
            for key in {one.key for one in decisions if one.key}
            if all(
                one.conversation in names or (not one.conversation and one.version is None)
                for one in self._history.find(Search(key=key), MOST)
            )
        }


def _named(place: LetterSource) -> str:
    return (
        "dead letters in the queue"
        if isinstance(place, QueueLetterSource)
        else "dead letters in the store"
    )


def _scrubbed(admin: StoreAdmin) -> str:
    """Why bytes of what was deleted may stay in the store's file; of servers, `not_reached`
    tells."""
    scrub: Callable[[], str] = getattr(admin, "scrub", str)
    return scrub()
