"""The documentation site: every page is in it, no link is broken, no file is foreign."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

import eventonce
from eventonce.core.status import ACKNOWLEDGED
from eventonce.types import Action, Status, VerdictKind
from tests.docs.pages import sections
from tests.docs.tables import plain

ROOT = Path(__file__).parents[2]
ASSETS = re.compile(r"""<(?:script|img|source|iframe)\b[^>]*\bsrc=["']?([^"'\s>]+)""")
LINKED = re.compile(r"""<link\b[^>]*>""")
STYLE = re.compile(r"""(?:@import\s+|url\()["']?([^"')\s;]+)""")


def named(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [page for one in inner for page in named(one)]


def test_every_page_has_its_place_in_the_navigation() -> None:
    docs = ROOT / "docs"
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = [str(page.relative_to(docs)) for page in docs.rglob("*.md")]
    assert sorted(named(nav)) == sorted(pages)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with every warning an error: links, anchors, names in the API reference."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / ".cache" / "site"


def test_the_site_loads_no_file_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    asked = []
    for page in pages:
        text = page.read_text()
        assert 'class="mermaid"' not in text, "its program would come from another host"
        links = [tag for tag in LINKED.findall(text) if "canonical" not in tag]
        asked += ASSETS.findall(text) + re.findall(r'href="([^"]+)"', " ".join(links))
    for sheet in site.rglob("*.css"):
        asked += STYLE.findall(sheet.read_text())
    assert [one for one in asked if re.match(r"(?:[a-z]+:)?//", one)] == []


def test_every_exported_name_is_in_the_reference(site: Path) -> None:
    page = (site / "api" / "index.html").read_text()
    for name in eventonce.__all__:
        assert name.startswith("__") or f'id="eventonce.{name}"' in page, name


def test_every_name_that_a_page_imports_is_in_the_reference(site: Path) -> None:
    reference = (site / "api" / "index.html").read_text()
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    imported = {
        f"{module}.{name}"
        for page in pages
        for module, names in re.findall(
            r"^\s*from (eventonce[\w.]*) import ([\w, ]+)", page.read_text(), re.MULTILINE
        )
        for name in names.split(", ")
    }
    assert len(imported) > 25
    assert {one for one in imported if f'id="{one}"' not in reference} == set()


def test_the_glossary_has_every_word_of_the_law() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    for word in (*get_args(VerdictKind), *get_args(Action)):
        assert f"`{word}`" in page, word


def test_the_glossary_says_of_each_status_whether_it_is_acknowledged() -> None:
    (rows,) = sections("glossary.md")["Statuses"].tables()
    said = {plain(status): acknowledged for status, _, acknowledged in rows}
    assert said == {one: "yes" if one in ACKNOWLEDGED else "no" for one in get_args(Status)}
