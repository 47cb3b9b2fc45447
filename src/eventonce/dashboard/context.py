"""The context of a request: the objects that all pages of one dashboard share."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from eventonce.config import DashboardTable
from eventonce.dashboard.access import Access
from eventonce.dashboard.actions import Actions
from eventonce.dashboard.blocking_calls import BlockingCalls
from eventonce.dashboard.resources import Resources
from eventonce.dashboard.snapshots import Shared, Snapshots
from eventonce.history import Search
from eventonce.markup import Html

SEARCH_WAIT: Final = 10.0
"""Seconds that a search may take: a search for a part of a reason reads all decisions."""

HIDDEN_INTERVAL: Final = 600.0
"""Seconds for which the count of hidden decisions is used again: it reads all decisions."""


class Context:
    """The resources of a dashboard, and the calls to them."""

    def __init__(self, resources: Resources, settings: DashboardTable) -> None:
        self.resources = resources
        self.access = Access(settings)
        self.actions = Actions(resources)
        self.ask_store = BlockingCalls("store")
        self.ask_letters = BlockingCalls("place of dead letters")
        """Separate from `ask_store`: snapshots must not wait for a read of many dead letters."""
        self.ask_history = BlockingCalls("history")
        self.ask_shadow = BlockingCalls("record of shadow mode")
        self.shadow: Shared[Html] | None = None
        """The report on shadow mode; None until the first request."""
        self.hidden = Shared(self._ask_for_hidden, HIDDEN_INTERVAL)
        """The number of decisions that cannot be found by an id, because the secret of their
        digests is unknown."""
        self.snapshots = Snapshots(resources, self.ask_store, self.ask_history)
        self.streams = 0
        """The number of live pages now."""

    async def _ask_for_hidden(self) -> int:
        def hidden() -> int:
            with self.resources.searching() as history:
                return history.hidden_from(Search(conversation="-", id="-", subject="-"))

        return await self.ask_history(hidden, SEARCH_WAIT)


def context_of(request: Request) -> Context:
    """Return the context of the dashboard that got this request."""
    context: Context = request.app.state.context
    return context
