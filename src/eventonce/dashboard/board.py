"""The board: what all pages of one dashboard share."""

from __future__ import annotations

from starlette.requests import Request

from eventonce.config import DashboardTable
from eventonce.dashboard.access import Access
from eventonce.dashboard.actions import Actions
from eventonce.dashboard.asking import Asker
from eventonce.dashboard.looks import Looks, Shared
from eventonce.dashboard.watched import Watched
from eventonce.markup import Html


class Board:
    """What is watched, and how it is asked."""

    def __init__(self, watched: Watched, settings: DashboardTable) -> None:
        self.watched = watched
        self.settings = settings
        self.access = Access(settings)
        self.actions = Actions(watched)
        self.ask_store = Asker("store")
        self.ask_letters = Asker("place of dead letters")
        """Apart from the store's: to read very many takes long, and no look waits for it."""
        self.ask_history = Asker("history")
        self.ask_shadow = Asker("record of shadow mode")
        self.shadow: Shared[Html] | None = None
        """The report on shadow mode, once somebody asked for it."""
        self.looks = Looks(watched, self.ask_store, self.ask_history)
        self.streams = 0
        """Pages that are kept up to date now."""


def board_of(request: Request) -> Board:
    """The board of the dashboard that this was asked of."""
    board: Board = request.app.state.board
    return board
