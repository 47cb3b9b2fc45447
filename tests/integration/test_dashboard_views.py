"""Every view of the dashboard shows the command line with the same result, for each person and each
configuration; and the command prints the numbers of the page."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import pytest

from eventonce import Consumer
from eventonce.audit import NO_AUDIT
from eventonce.dashboard.app import ROUTES
from eventonce.history import History
from eventonce.runtime.shadow import NO_RECORD
from eventonce.stores.sqlite import SQLiteStore
from tests.docs.test_command_lines import parse_line
from tests.helpers import PATIENCE, Run, call, until
from tests.integration.test_dashboard_commands import pasted, running
from tests.unit.test_letters_selection import letter
from tests.unit.test_shadow import lines_of

SAME: Final = {"sec-fetch-site": "same-origin"}
PEOPLE: Final = {"ann": "ann-password", "vic": "vic-password"}
BARE: Final = """
store = "sqlite:///store.db"
name = "crm"
[dashboard]
operators = { ann = "ann-password" }
viewers = { vic = "vic-password" }
"""
FULL: Final = f"""
audit = "audit.jsonl"
shadow_log = "shadow.jsonl"
{BARE}
[history]
store = "sqlite:///history.db"
[[sink]]
to = "file:out.jsonl"
"""
QUEUE: Final = f'letters = "sqs://letters?region=eu-central-1"\n{BARE}'
UNSEEN: Final = "no customer \u202e+49\u200b170\u00a0"
"""A reason with invisible characters."""

LETTERS: Final = [
    *(letter(number) for number in range(7)),
    letter(7, UNSEEN),
    letter(8, consumer="billing"),
]

VIEWS: Final[dict[str, list[str]]] = {
    "/": ["/", "/?range=7d", "/?live=off"],
    "/search": ["/search", "/search?event=id-1", "/search?status=done,busy&since=1h"],
    "/workers": ["/workers"],
    "/store": ["/store"],
    "/shadow": ["/shadow"],
    "/letters": [
        *("/letters", "/letters?from=store", "/letters?consumer=", "/letters?consumer=billing"),
        "/letters?type=none",
    ],
    "/letters/one": [f"/letters/one?id={LETTERS[3].id}"],
    "/letters/{kind}": [
        f"/letters/{kind}?{query}"
        for kind in ("redrive", "drop", "export")
        for query in ("", "consumer=", "rule=call&since=9000d")
    ],
    "/actions": ["/actions"],
    "/actions/{id}": ["/actions/{id}"],
}
"""Each path of a page, and views of it."""

NO_PAGES: Final = {"/rates", "/live", "/static/{name}"}


def count(page: str) -> int:
    """The number of dead letters on a page."""
    return int(re.findall(r"<b>(\d+)\u00a0dead letters?</b>", page)[0])


SAYS: Final[dict[str, Callable[[str, list[Any]], bool]]] = {
    "/search": lambda page, said: (
        f"{sum(len(one['decisions']) for one in said[0])}\u00a0decision" in page
    ),
    "/store": lambda page, said: f">{said[0]['letters']}<" in page,
    "/shadow": lambda page, said: f"{said[0]['events']} events" in page.replace("\u00a0", " "),
    "/letters": lambda page, said: count(page) == sum(one["count"] for one in said),
    "/letters/one": lambda page, said: [one["id"] in page for one in said] == [True],
    "/letters/redrive": lambda page, said: count(page) == len(said[0]["letters"]),
    "/letters/drop": lambda page, said: count(page) == said[0]["would_drop"],
    "/letters/export": lambda page, said: count(page) == said[0]["would_export"],
    "/actions": lambda page, said: (
        re.findall('href="/actions/(.*?)"', page)
        == [one["id"] for one in said if one["via"] == "dashboard"]
    ),
}
"""Whether the command of a page, run with --json, prints the number or the id of the page."""

WITHOUT: Final = {"audit": NO_AUDIT, "shadow": NO_RECORD}
"""The message of a page and of its command about a file that is not named; all other pages need a
history."""


def got(client: httpx.Client, path: str, **params: str) -> httpx.Response:
    """The answer to a request; on a busy machine the store may answer too late for a page."""
    while "did not answer within" in (answer := client.get(path, params=params or None)).text:
        pass
    return answer


def command_of(page: str) -> str:
    (command,) = re.findall('<code id="command">(.*?)</code>', page)
    return html.unescape(command)


def with_json(command: str) -> list[str]:
    """The words of a command that prints JSON; the words after the two dashes are no options."""
    words = shlex.split(command)[1:]
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], "--json", *words[at:]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with everything that a dashboard can show."""
    store = SQLiteStore(tmp_path / "store.db")
    store.put_letters(LETTERS)
    store.close()
    with (
        Consumer(f"sqlite:///{tmp_path}/store.db", name="crm", handler=lambda _: None) as consumer,
        History(f"sqlite:///{tmp_path}/history.db") as kept,
    ):
        consumer.observers.append(kept.observer(consumer))
        consumer.process([call(number) for number in range(3)])
        consumer.process([call(1)])
        consumer.process([call(9, type=UNSEEN)])
    (tmp_path / "shadow.jsonl").write_bytes(b"\n".join(lines_of(5)) + b"\n")
    return tmp_path


def exported(client: httpx.Client) -> str:
    """The id of an export that has ended."""
    begun = client.post("/letters/export", data={"limit": "5"})
    assert begun.status_code == 303, begun.text
    link = begun.headers["location"]
    until(lambda: ", finished" in client.get(link).text)
    return str(link.rpartition("/")[2])


def test_every_page_of_the_dashboard_has_its_views() -> None:
    paths = {one.path for one in ROUTES if one.methods and "GET" in one.methods}
    pages = {one for one in paths if not one.startswith("/live/")} - NO_PAGES
    assert pages == VIEWS.keys()


def status_of(name: str, path: str, config: str) -> int:
    """The status of an answer: without a sink nothing is redriven, and a viewer may not act."""
    if path.startswith("/letters/redrive") and config != FULL:
        return 409
    acts = path.startswith(("/letters/redrive", "/letters/drop", "/letters/export"))
    return 403 if acts and name == "vic" else 200


@pytest.mark.parametrize("config", [FULL, BARE, QUEUE], ids=["full", "bare", "queue"])
def test_every_view_shows_a_command_that_prints_the_same(
    run: Run, folder: Path, config: str
) -> None:
    pytest.importorskip("duckdb")
    if config != FULL:
        (folder / "history.db").unlink()
    seen: list[tuple[str, str, str]] = []
    with running(folder, "dashboard", "--listen", "0", config=config) as started:
        url = started.found(r"http://127\.0\.0\.1:\d+")
        with httpx.Client(base_url=url, headers=SAME, timeout=PATIENCE) as client:
            client.auth = httpx.BasicAuth("ann", PEOPLE["ann"])
            id_ = exported(client)
            for name, password in PEOPLE.items():
                client.auth = httpx.BasicAuth(name, password)
                for path in (one for views in VIEWS.values() for one in views):
                    answer = got(client, path.replace("{id}", id_))
                    assert answer.status_code == status_of(name, path, config), (name, path)
                    if answer.status_code == 200:
                        seen.append((name, path, answer.text))
    for name, path, page in seen:
        command = command_of(page)
        parse_line(command)
        said = run(*with_json(command))
        if said.code == 2:
            assert config != FULL, (path, command, said.err)
            why = WITHOUT.get(command.split()[1], "No history is kept")
            assert why in html.unescape(page), (name, path)
            assert why.lower() in msgspec.json.decode(said.err)["error"].lower()
            continue
        assert said.code in (0, 1), (path, command, said.err)
        template = path.partition("?")[0]
        # With a queue in the file, the page first asks which dead letters to show.
        asks = config == QUEUE and template == "/letters" and "from=" not in path
        if template in SAYS and not asks:
            assert SAYS[template](page, said.documents), (name, path, command, said.out)
        if template == "/actions/{id}" and name == "vic":
            assert [one["id"] for one in said.documents] == [id_]


def test_invisible_characters_are_searched_for_as_typed(folder: Path) -> None:
    fields = {"/letters": "reason", "/search": "type", "/letters/export": "reason"}
    with running(folder, "dashboard", "--listen", "0", config=FULL) as started:
        url = started.found(r"http://127\.0\.0\.1:\d+")
        auth = ("ann", PEOPLE["ann"])
        with httpx.Client(base_url=url, timeout=PATIENCE, auth=auth) as client:
            for path, name in fields.items():
                page = got(client, path, **{name: f" {UNSEEN}"}).text
                (again,) = re.findall(f'name="{name}" value="(.*?)"', page)
                assert html.unescape(again) == UNSEEN, "the form asks for the same"
                command = command_of(page)
                assert command.isprintable()
                for locale in ("C", "C.UTF-8"):
                    said = pasted(folder, command, LC_ALL=locale)
                    assert said.returncode == 0, (command, said.stderr)
                    documents = [msgspec.json.decode(one) for one in said.stdout.splitlines()]
                    assert SAYS[path](page, documents), (command, documents)
                assert "1\u00a0de" in page, path
