"""The stores, each held to the contract of `eventonce.testing`."""

from __future__ import annotations

import pytest

from eventonce.testing.contract import RACES, Race, StoreContract, StoreFactory
from eventonce.testing.workers import Runner, threads

FEWER = 50
"""Number of programs where only the way to the server differs, or the server's age."""


class VariantContract(StoreContract):
    """The contract where only the way to the server differs, or the server's age.

    One kind of worker runs each race: a race takes much processor time, and the kinds differ in the
    store's own code, which all of them race through on the newest server. Processes still make the
    histories.
    """

    @pytest.fixture
    def runner(self) -> Runner:
        return threads

    @pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
    def test_race(self, race: Race, runner: Runner, factory: StoreFactory) -> None:
        race(factory, runner)
