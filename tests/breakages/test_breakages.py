"""Each planted breakage of the runtime breaks a promise, which holds without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from eventonce.runtime.shared_process import THIS_PROCESS
from tests import helpers
from tests.breakages.breakage import Breakage
from tests.breakages.runtime import BREAKAGES
from tests.unit import test_gate, test_lane

SHORT = 0.3
"""Seconds after which a promise that waits for what a breakage keeps from happening gives up."""


@pytest.fixture(autouse=True)
def _leave_nothing_behind() -> Iterator[None]:
    """The remains of a breakage in the process would make the tests after it wait."""
    yield
    THIS_PROCESS.reset()


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_a_breakage_breaks_its_promise_which_holds_without_it(
    breakage: Breakage, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(breakage, monkeypatch)()
    with monkeypatch.context() as patch:
        breakage.plant(patch)
        for module in (helpers, test_gate, test_lane):
            patch.setattr(module, "PATIENCE", SHORT)
        with pytest.raises(BaseException) as broken:  # noqa: PT011  in whichever way it fails
            kept(breakage, patch)()
    assert isinstance(broken.value, Exception | pytest.fail.Exception)


def kept(breakage: Breakage, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    given = [patch if one == "patch" else one for one in breakage.given]
    return lambda: breakage.promise(*given)
