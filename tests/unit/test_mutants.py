"""The list of planted breakages is kept up to date; `make mutants` plants them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import MUTANTS, Mutant
from tests.mutants.mutant import planted

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_breakage_can_still_be_planted(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert planted(mutant, text) != text


@pytest.fixture(scope="module")
def tests() -> str:
    """Everything a test may be named in."""
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("src/eventonce/testing/**/*.py")]
    return "\n".join(
        file.read_text(encoding="utf-8") for file in files if file.parent.name != "mutants"
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_that_must_go_red_are_there(mutant: Mutant, tests: str) -> None:
    assert mutant.red
    for test in mutant.red:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file()
        if not name:
            # The whole file.
            continue
        function, _, parameter = name.rpartition("::")[2].partition("[")
        assert f"def {function}(" in tests
        if function in ("test_case", "test_race", "test_hole"):
            # A case of the contract is named by its parameter.
            assert parameter.removesuffix("]").partition("-")[0] in tests


def test_every_breakage_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25
