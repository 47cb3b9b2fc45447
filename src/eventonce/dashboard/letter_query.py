"""The dead letters that the query of a page or a form names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request

from eventonce.clock import wall_clock
from eventonce.dashboard.forms import typed
from eventonce.dashboard.resources import Resources
from eventonce.errors import ConfigError
from eventonce.letters.selection import Selection
from eventonce.letters.sources import STORE, LetterSource, StoreLetterSource, open_queue
from eventonce.rules.instants import asked

FILTERS: Final = ("status", "rule", "type", "reason", "group", "conversation")
LONGEST_FORM: Final = 64 << 10
"""The most bytes of a form; a selection has some hundred."""

QUEUE: Final = "queue"
"""The word for the dead-letter queue in a link; its address stays on the server."""


class LetterQuery:
    """The selection of dead letters that a link or a form names, and their place."""

    def __init__(self, given: Mapping[str, str], resources: Resources) -> None:
        """Without a consumer, that of the resources is meant; an empty name means all consumers."""
        self._resources = resources
        names = ("id", "consumer", *FILTERS, "since", "until", "from")
        self.fields = {
            name: value
            for name in names
            if name in given and ((value := typed(given, name)) or name == "consumer")
        }
        """The fields that were given."""
        id_ = self.fields.get("id")
        self.selection: Final = Selection(
            ids=(id_,) if id_ else (),
            consumer=self.fields.get("consumer", resources.name) or None,
            since=self._instant("since"),
            until=self._instant("until"),
            group_of=resources.group_of,
            unnamed=resources.unnamed,
            **{name: self.fields.get(name) for name in FILTERS},
        )
        self.from_queue: Final = self.fields.get("from") == QUEUE
        if self.fields.get("from") not in (None, STORE, QUEUE):
            raise HTTPException(400, "from must be store or queue")

    def link(self, path: str, **other: str | None) -> str:
        """Return a link to this path with the same selection; `other` replaces fields, and None
        removes one."""
        fields = {name: value for name, value in (self.fields | other).items() if value is not None}
        return f"{path}?{urlencode(fields)}" if fields else path

    def place(self, *, to_change: bool) -> LetterSource:
        """Open the place of these dead letters: the store, or the queue. This may block."""
        resources, consumer = self._resources, self.selection.consumer
        if not self.from_queue:
            return StoreLetterSource(resources.store, consumer, close=False)
        if not resources.letters:
            raise ConfigError("there is no dead-letter queue: set `letters` in eventonce.toml")
        return open_queue(resources.letters, consumer, resources.sealer, to_change=to_change)

    @property
    def _source(self) -> str | None:
        """The value of `--from` for the same place. Without `--from`, the command line reads the
        queue if there is one."""
        if self.from_queue:
            return self._resources.letters
        return STORE if self._resources.letters else None

    def command(self, *words: str) -> str:
        """Return the command line for the same dead letters."""
        arguments = self.selection.arguments(source=self._source)
        return self._resources.command("letters", *words, *arguments)

    def scope(self, limit: int) -> str:
        """Return the selection as audit lines have it."""
        return self.selection.scope(source=self._source, limit=limit)

    def _instant(self, name: str) -> int | None:
        text = self.fields.get(name)
        if text is None:
            return None
        try:
            return asked(text, wall_clock())
        except ValueError as error:
            raise HTTPException(400, f"{name}: {error}") from None


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of the form in a request."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_FORM:
            raise HTTPException(413, "The form is too large")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100))
    except ValueError:
        raise HTTPException(400, "The form cannot be read") from None
