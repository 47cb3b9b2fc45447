"""The context of a request: what all pages of one dashboard share."""

from __future__ import annotations

from starlette.requests import Request

from eventonce.config import DashboardTable
from eventonce.dashboard.access import Access
from eventonce.dashboard.actions import Actions
from eventonce.dashboard.blocking_calls import BlockingCalls
from eventonce.dashboard.resources import Resources
from eventonce.dashboard.snapshots import Shared, Snapshots
from eventonce.markup import Html


class Context:
    """The resources, and how they are asked."""

    def __init__(self, resources: Resources, settings: DashboardTable) -> None:
        self.resources = resources
        self.settings = settings
        self.access = Access(settings)
        self.actions = Actions(resources)
        self.ask_store = BlockingCalls("store")
        self.ask_letters = BlockingCalls("place of dead letters")
        """Apart from the store's: to read very many takes long, and no look waits for it."""
        self.ask_history = BlockingCalls("history")
        self.ask_shadow = BlockingCalls("record of shadow mode")
        self.shadow: Shared[Html] | None = None
        """The report on shadow mode, once somebody asked for it."""
        self.snapshots = Snapshots(resources, self.ask_store, self.ask_history)
        self.streams = 0
        """Pages that are kept up to date now."""


def context_of(request: Request) -> Context:
    """The context of the dashboard that this was asked of."""
    context: Context = request.app.state.context
    return context
