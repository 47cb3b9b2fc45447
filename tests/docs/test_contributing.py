"""CONTRIBUTING.md names targets of make, files and tables that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import broken_links

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
TEXT = PAGE.read_text()
WORDS = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "word", sorted(set(re.findall(r"(?:^|`)make ([a-z]+)", TEXT, re.MULTILINE)))
)
def test_a_word_of_make_is_a_target(word: str) -> None:
    assert word in WORDS


@pytest.mark.parametrize("path", re.findall(r"`((?:src|tests|docs|benchmarks)/[^`…]+)`", TEXT))
def test_a_path_exists(path: str) -> None:
    assert (ROOT / path.replace("NAME", "genesys")).exists()


@pytest.mark.parametrize(("name", "file"), re.findall(r"`([A-Z]+)` in `(src/[^`]+)`", TEXT))
def test_a_table_is_in_its_file(name: str, file: str) -> None:
    assert re.search(rf"^{name}\b", (ROOT / file).read_text(), re.MULTILINE)


def test_no_link_is_broken() -> None:
    assert broken_links(PAGE) == []


def test_no_docstring_begins_with_a_word_that_the_page_forbids() -> None:
    (line,) = re.findall(r"A docstring begins with the noun .*? never with (.*?)\. ", TEXT)
    words = "|".join(re.findall(r"[A-Z][a-z]+", line))
    forbidden = re.compile(rf'^\s*"""({words}) .*', re.MULTILINE)
    folders = ("src", "tests", "examples", "benchmarks", "pictures")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    found = {str(file): forbidden.search(file.read_text("utf-8")) for file in files}
    assert len(files) > 500
    assert {name for name, match in found.items() if match} == set()
