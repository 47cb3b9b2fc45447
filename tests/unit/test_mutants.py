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
        # A parametrised one is named by its parameter, such as a case of the contract.
        case = name.partition("[")[2].removesuffix("]") or name.rpartition("::")[2]
        assert case in tests


def test_every_breakage_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25
