"""A selection of dead letters by their content, for a command or a page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

import msgspec

from eventonce import envelope
from eventonce.errors import EnvelopeError
from eventonce.history.decision import conversation_of, id_kept
from eventonce.history.digests import DIGEST, Digests
from eventonce.letters.reasons import group_of
from eventonce.types import Event, Letter

_LATEST: Final = 1 << 62

ALL_CONSUMERS: Final = "--all-consumers"
"""The option that selects the dead letters of all consumers."""


def unnaming(secrets: Sequence[bytes]) -> Callable[[str], str]:
    """Return a function from the id of a conversation to a digest, for places such as the audit
    that must not have the id. With secrets it is the digest of the history, because a telephone
    number could be guessed from a digest without a key."""
    digests = Digests(secrets)

    def unnamed(conversation: str) -> str:
        if not digests:
            found = sha256(conversation.encode(errors="surrogateescape")).hexdigest()
            return f"sha256:{found}"
        # The caller may pass the digest that the history shows.
        is_one = DIGEST.fullmatch(conversation) and conversation.startswith(digests.begins)
        return conversation if is_one else digests.of("conversation", conversation)

    return unnamed


class Selection(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A selection of the dead letters that match every given field; without fields, of all."""

    ids: tuple[str, ...] = ()
    """Beginnings of ids; the id must begin with one of them."""
    consumer: str | None = None
    status: str | None = None
    rule: str | None = None
    type: str | None = None
    reason: str | None = None
    """A text that the reason contains."""
    group: str | None = None
    """The id of a group: reasons that differ only in numbers, ids and quoted values."""
    conversation: str | None = None
    since: int | None = None
    until: int | None = None
    group_of: Callable[[str], str] = group_of
    """A function from a reason to the id of its group."""
    unnamed: Callable[[str], str] = unnaming(())
    """A function from the id of a conversation to its digest."""

    def matches(self, letter: Letter) -> bool:
        """Whether this dead letter is selected. Its event is parsed only if a field needs it."""
        if not (
            (not self.ids or letter.id.startswith(self.ids))
            and self.consumer in (None, letter.consumer)
            and self.status in (None, letter.status)
            and self.rule in (None, letter.rule)
            and (self.reason or "") in letter.reason
            and (self.since or 0) <= letter.at < (_LATEST if self.until is None else self.until)
            and (self.group is None or self.group == self.group_of(letter.reason))
        ):
            return False
        if self.type is None and self.conversation is None:
            return True
        event = event_of(letter)
        return (
            event is not None
            and self.type in (None, event.type)
            and (self.conversation is None or id_kept(self.conversation) == conversation_of(event))
        )

    @property
    def outside(self) -> Selection:
        """The part of the selection that can be checked on a sealed dead letter without the key."""
        return msgspec.structs.replace(self, type=None, reason=None, group=None, conversation=None)

    def arguments(self, *, source: str | None = None, limit: int | None = None) -> list[str]:
        """Return the arguments of `eventonce letters …` for the same selection, and this limit."""
        named = {
            "--from": source,
            "--name": self.consumer,
            "--status": self.status,
            "--rule": self.rule,
            "--type": self.type,
            "--reason": self.reason,
            "--group": self.group,
            "--conversation": self.conversation,
            "--since": None if self.since is None else moment(self.since),
            "--until": None if self.until is None else moment(self.until),
            "--limit": limit,
        }
        # With `=`, because a value may begin with a dash.
        given = [f"{name}={value}" for name, value in named.items() if value is not None]
        # Without a name, a command means the consumer of the file.
        whose = [ALL_CONSUMERS] if self.consumer is None else []
        return [*whose, *given, *(["--", *self.ids] if self.ids else [])]

    def text(self, *, source: str | None = None, limit: int | None = None) -> str:
        """Return the arguments, quoted for a shell."""
        return " ".join(map(quoted, self.arguments(source=source, limit=limit)))

    def scope(self, *, source: str | None = None, limit: int | None = None) -> str:
        """Return the same text for permanent lines, such as those of the audit: with a digest
        instead of the id of the conversation, because the conversation may be forgotten."""
        whose = self.conversation and self.unnamed(self.conversation)
        return msgspec.structs.replace(self, conversation=whose).text(source=source, limit=limit)


def event_of(letter: Letter) -> Event | None:
    """Return the event of a dead letter; None if its bytes are no event."""
    try:
        return envelope.read(letter.event, max_bytes=max(1, len(letter.event)) * 4)
    except EnvelopeError:
        return None


def quoted(word: str) -> str:
    """Return the word, quoted for bash and zsh with printable characters only. Other characters
    are written as octal bytes: escapes by number depend on the locale. NUL, which no argument can
    have, becomes U+FFFD, as in a history."""
    if word.isprintable():
        return shlex.quote(word)
    shown = [
        one if one.isprintable() and one not in "\\'" else _octal(one)
        for one in word.replace("\0", "\ufffd")
    ]
    return f"$'{''.join(shown)}'"


def _octal(sign: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in sign.encode(errors="surrogateescape"))


def moment(at: int) -> str:
    """Return the time as commands accept it."""
    seconds, milliseconds = divmod(at, 1000)
    text = datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")
    return f"{text}.{milliseconds:03}Z" if milliseconds else f"{text}Z"
