"""The contract: the test suite of every store, here and in other projects.

A store joins with a few lines, and needs pytest and Hypothesis:

    from functools import partial
    from eventonce.testing.contract import StoreFactory, StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def factory(self, tmp_path):
            return StoreFactory(partial(MyStore, tmp_path / "store"))

`StoreFactory` says which cases the store can take. `EVENTONCE_EXAMPLES=20000` in the environment
plays that many random programs instead of the few fixed ones, and `EVENTONCE_HISTORIES=50` records
that many rounds of concurrent calls, drawn from `EVENTONCE_SEED`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import isfunction, signature
from types import ModuleType
from typing import Final

import pytest

from eventonce.testing.cases import (
    admin,
    batches,
    crashes,
    histories,
    law,
    races,
    transactions,
)
from eventonce.testing.cases.holes import HOLES
from eventonce.testing.cases.steps import play
from eventonce.testing.factory import StoreFactory, opened
from eventonce.testing.workers import Runner, processes, threads, threads_on_one_handle

__all__ = ["CASES", "HOLES", "RACES", "RUNNERS", "StoreContract", "StoreFactory"]

Case = Callable[[StoreFactory], None]
Race = Callable[[StoreFactory, Runner], None]


def _cases(*modules: ModuleType) -> Iterator[Callable[..., None]]:
    """Yield the public functions of these modules that take a store: one promise each."""
    for module in modules:
        for name, value in vars(module).items():
            own = isfunction(value) and value.__module__ == module.__name__
            if own and name[0] != "_" and "factory" in signature(value).parameters:
                yield value


CASES: Final[tuple[Case, ...]] = tuple(
    _cases(law, batches, crashes, histories, admin, transactions)
)
RACES: Final[tuple[Race, ...]] = tuple(_cases(races))
RUNNERS: Final[tuple[Runner, ...]] = (threads, threads_on_one_handle, processes)


def _sentence(case: object) -> str:
    return str(getattr(case, "__name__", case))


class StoreContract:
    """Subclass it under a name that begins with `Test`, with a fixture called `factory`."""

    @pytest.mark.parametrize("case", CASES, ids=_sentence)
    def test_case(self, case: Case, factory: StoreFactory) -> None:
        """One promise of a store."""
        case(factory)

    @pytest.mark.parametrize("runner", RUNNERS, ids=_sentence)
    @pytest.mark.parametrize("race", RACES, ids=_sentence)
    def test_race(self, race: Race, runner: Runner, factory: StoreFactory) -> None:
        """One promise that must hold while other workers call the store."""
        race(factory, runner)

    @pytest.mark.parametrize("hole", HOLES)
    def test_hole(self, hole: str, factory: StoreFactory) -> None:
        """One program that the law, or another library, got wrong in the past."""
        with opened(factory) as store:
            play(HOLES[hole], store)
