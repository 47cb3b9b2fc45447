"""The dashboard without a browser: the text of its pages, its calls to the store and the history,
and its answers while these are away."""

from __future__ import annotations

import asyncio
import html
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import msgspec
import pytest
from msgspec import structs

from eventonce import Consumer, Job, Rule, envelope
from eventonce.clock import wall_clock
from eventonce.config import DashboardTable
from eventonce.core.ports import Stats
from eventonce.core.status import COPIES, MEANINGS
from eventonce.dashboard import Resources, blocking_calls, dashboard
from eventonce.dashboard.blocking_calls import BlockingCalls, Unavailable
from eventonce.dashboard.event_stream import _events, event
from eventonce.dashboard.health import Health, Seen, health
from eventonce.dashboard.pages.search import FORM, SearchQuery
from eventonce.dashboard.pages.store import size_of
from eventonce.dashboard.snapshots import LIVE_RANGE
from eventonce.errors import StoreUnavailable
from eventonce.history import History, Search
from eventonce.history.leases import Lease, Load, WorkerState, process_name
from eventonce.history.summary import GROUP_OF, GROUPS
from eventonce.markup import lead
from eventonce.stores.memory import MemoryStore
from eventonce.types import Outcome
from tests.helpers import PATIENCE, Run, reject, until

HERE = "http://127.0.0.1:8090"
HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(2)>"
CALLS = Rule(name="calls", key=["detail.number"])
PAGES = ("/", "/?range=7d", "/search", "/search?status=dead", "/workers", "/store", "/shadow")


def ended(number: int, call: object, **more: Any) -> bytes:
    """An event of a call."""
    detail = {"contactId": call, "number": number, **more}
    return msgspec.json.encode(
        {"id": f"id-{number}", "detail-type": "call.ended", "source": "s", "detail": detail}
    )


class World:
    """A consumer with a history, and the dashboard over both."""

    def __init__(self, folder: Path) -> None:
        self.history = f"sqlite:///{folder}/history.db"
        self.consumer = Consumer(MemoryStore(), name="crm", rules=[CALLS])
        self.consumer.on()(self._handle)
        with History(self.history, worker="w1") as kept:
            self.consumer.observers.append(kept.observer(self.consumer, "sqs:calls"))
            self.consumer.process([ended(1, "c-1"), ended(2, "c-2"), ended(3, HOSTILE)])
            self.consumer.process([ended(1, "c-1")])
            self.consumer.process([ended(4, "c-1", fails=True)])
        self.resources = Resources(
            lambda: self.consumer.store,
            name="crm",
            history=self.history,
            options={"history": ["--history", self.history]},
        )
        self.app = dashboard(self.resources)

    @staticmethod
    def _handle(job: Job) -> None:
        if "fails" in job.event.detail:
            raise ConnectionError("the CRM is away, says 'Eve' <b>")

    def asked(self, *paths: str) -> list[httpx.Response]:
        return asyncio.run(asked(self.app, *paths))


async def asked(app: Any, *paths: str) -> list[httpx.Response]:
    """The answers to simultaneous requests for all these paths, with the cookie of the link."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=HERE, timeout=60) as client:
        await client.get(app.state.context.access.link(f"{HERE}/"))
        return list(await asyncio.gather(*(client.get(path) for path in paths)))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience with each call to the store and to the history, however busy the machine is."""
    monkeypatch.setattr("eventonce.dashboard.snapshots.FIRST_WAIT", PATIENCE)
    monkeypatch.setattr(BlockingCalls.__call__, "__defaults__", (PATIENCE,))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.resources.close()
    made.consumer.close()


def test_every_page_is_complete_and_escaped_and_allows_only_the_scripts_of_the_dashboard(
    world: World,
) -> None:
    for path, answer in zip(PAGES, world.asked(*PAGES), strict=True):
        assert answer.status_code == 200, (path, answer.text)
        policy = answer.headers["content-security-policy"]
        (nonce,) = re.findall("script-src 'nonce-([^']+)'", policy)
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        scripts = re.findall("<script[^>]*>", answer.text)
        assert len(scripts) == 2, path
        assert all(f'nonce="{nonce}"' in one and "src=" in one for one in scripts), path
        assert not re.findall(r"\sstyle=|\son\w+=", re.sub(r'"[^"]*"', "", answer.text)), path
        assert "alert(1)</script>" not in answer.text
        assert 'id="command"' in answer.text, path


def test_the_record_of_shadow_mode_is_reported(tmp_path: Path, run: Run) -> None:
    record = tmp_path / "shadow.jsonl"
    pytest.importorskip("duckdb")
    config = tmp_path / "crm.toml"
    config.write_text(
        f'store = "sqlite:///{tmp_path}/s.db"\nname = "crm"\nshadow_log = "{record}"\n'
        f'[override]\nshadow = true\n[[sink]]\nto = "file:{tmp_path}/out.jsonl"\nmatch = "*"\n'
    )
    capture = tmp_path / "c.jsonl"
    capture.write_bytes(b"\n".join([ended(1, "c-1"), ended(2, "c-2")]))
    # In sequence: a copy at the same time as its original would wait, and is no drop.
    for _ in range(2):
        assert run("run", "-c", config, "--from", capture).code == 0
    options = ["--config", str(config)]
    resources = Resources(MemoryStore, shadow_log=str(record), options={"config": options})
    (answer,) = asyncio.run(asked(dashboard(resources), "/shadow"))
    text = re.sub("<[^>]*>", "", answer.text).replace("\u00a0", " ")
    assert "4 events, of which the rules would drop 50.0" in text
    assert "Not enough yet to switch on." in text
    assert f"eventonce shadow report --config {config}" in text
    assert run("shadow", "report", *options, "--json").documents[0]["events"] == 4
    missing = Resources(MemoryStore, shadow_log=str(tmp_path / "none.jsonl"))
    (answer,) = asyncio.run(asked(dashboard(missing), "/shadow"))
    assert (answer.status_code, "does not exist yet" in answer.text) == (503, True)


def test_two_answers_never_share_a_nonce(world: World) -> None:
    policies = {one.headers["content-security-policy"] for one in world.asked("/", "/", "/store")}
    assert len(policies) == 3


def test_the_overview_counts_the_decisions(world: World) -> None:
    (answer,) = world.asked("/")
    text = re.sub("<[^>]*>", " ", answer.text)
    assert re.search(r"Ran\s+…\s+3\s+60.0", text), "no rate is known at the first look"
    assert re.search(r"Copies\s+…\s+1\s+20.0", text)
    assert re.search(r"Not settled\s+…\s+1\s+20.0", text)
    assert "delivered again, under the same transport id" in text
    assert re.search(r"call\.\s*ended\s+5\s", text)


def rows_of(page: str, title: str) -> Iterator[tuple[str, int]]:
    """The link and the number of each row below this title."""
    (_, _, below) = page.partition(f"<h2>{title}</h2>")
    for row in re.findall("<tr>(.*?)</tr>", below.partition("</section>")[0])[1:]:
        (link,) = re.findall('href="(.*?)"', row)
        (many,) = re.findall(r'<td class="n"[^>]*>(\d+)</td>', row)
        yield html.unescape(link), int(many)


def test_a_number_of_the_overview_leads_to_the_decisions_that_it_counts(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/history.db"
    event_ = envelope.read(ended(1, "c-1"))
    numbered = list(enumerate(MEANINGS, 1))
    outcomes = [Outcome(event_, status, "why") for many, status in numbered for _ in range(many)]
    outcomes += [Outcome(event_, "duplicate", same_id=same) for same in (True, False, False)]
    with History(uri) as kept:
        kept.observer(Consumer(MemoryStore(), name="crm")).batch(outcomes, 0.0)
    app = dashboard(Resources(MemoryStore, history=uri))
    (page,) = asyncio.run(asked(app, "/"))
    rows = list(rows_of(page.text, "Outcomes"))
    assert sum(many for _, many in rows) == len(outcomes)
    causes = list(rows_of(page.text, "Copies, by cause"))
    assert sum(many for _, many in causes) == sum(one.status in COPIES for one in outcomes)
    rows += causes
    for (link, many), answer in zip(
        rows, asyncio.run(asked(app, *(link for link, _ in rows))), strict=True
    ):
        assert re.search(f">{many}\u00a0decisions?\\.", answer.text), link
        (_, chosen), _ = parse_qsl(urlsplit(link).query)
        assert f'value="{chosen}" selected' in answer.text


def test_a_search_finds_the_story_of_a_conversation_and_escapes_its_text(world: World) -> None:
    story, found, event_ = world.asked(
        "/search?conversation=c-1", "/search?reason=CRM", "/search?event=id-1"
    )
    assert " on worker w1, through sqs:calls" in story.text
    assert "1 copy since" in story.text
    assert "failed once" in story.text
    assert found.text.count("<tr>") == 2
    assert "says &#x27;Eve&#x27; &lt;b&gt;" in found.text
    assert event_.text.count('class="chapter"') == 1


def test_a_state_is_found_by_its_subject_and_a_copy_leads_to_the_event_that_took_effect(
    tmp_path: Path,
) -> None:
    rule = Rule(name="agent", subject=["detail.user"], order="detail.number")
    consumer = Consumer(MemoryStore(), name="crm", rules=[rule], handler=lambda _: None)
    uri, people = (
        f"sqlite:///{tmp_path}/history.db",
        DashboardTable(operators={"ann": "ann-password"}, viewers={"vic": "vic-password"}),
    )
    with History(uri) as kept:
        consumer.observers.append(kept.observer(consumer))
        for number in (2, 1):
            consumer.process([ended(number, "c-1", user="+49 170 5550123 <b>")])
    resources = Resources(lambda: consumer.store, name="crm", history=uri)
    paths = ("/search", "/search?subject=%2B49+170+5550123+%3Cb%3E", "/search?subject=u")
    listed, story, nothing = asyncio.run(asked(dashboard(resources), *paths))
    link = '<a href="/search?subject=%2B49+170+5550123+%3Cb%3E"'
    won = '<a href="/search?event=id-2" title="id-2" class="inline">the event that took effect</a>'
    assert listed.text.count(link) == 2
    assert listed.text.count(won) == 1
    assert 'name="subject"' in listed.text
    assert story.text.count('class="chapter"') == 2
    assert story.text.count(link) == 2
    assert story.text.count(won) == 1
    assert "event id-2 has that version" in story.text
    assert "+49 170 5550123 &lt;b&gt;" in story.text
    assert "has no such decision" in nothing.text

    async def as_viewer() -> list[httpx.Response]:
        transport = httpx.ASGITransport(dashboard(resources, people))
        auth = httpx.BasicAuth("vic", "vic-password")
        async with httpx.AsyncClient(transport=transport, base_url=HERE, auth=auth) as client:
            return [await client.get(path) for path in (*paths[:2], "/search?conversation=c-1")]

    hidden, refused, by_conversation = asyncio.run(as_viewer())
    for page in (hidden, by_conversation):
        assert (page.status_code, "5550123" in page.text) == (200, False)
        assert won in page.text, "a transport id is shown as any other"
        assert 'name="subject"' not in page.text
    assert (refused.status_code, "not search in them" in refused.text) == (403, True)
    resources.close()


@pytest.mark.parametrize("secrets", [[], [b"a secret of thirty-two characters"]])
def test_a_story_leads_to_its_dead_letter(tmp_path: Path, secrets: list[bytes]) -> None:
    consumer = Consumer(MemoryStore(), name="crm", rules=[CALLS], handler=reject)
    uri = f"sqlite:///{tmp_path}/history.db"
    with History(uri, secrets=secrets) as kept:
        consumer.observers.append(kept.observer(consumer))
        consumer.process([ended(1, "c-1"), ended(2, "c-2")])
    resources = Resources(lambda: consumer.store, name="crm", history=uri, secrets=secrets)
    app = dashboard(resources)
    paths = ("/search?conversation=c-1", "/search?event=id-1")
    links = [
        re.findall('; <a href="(.*?)">kept as a dead letter</a>', answer.text)
        for answer in asyncio.run(asked(app, *paths))
    ]
    link = "/letters?conversation=c-1&amp;consumer=crm"
    # A search by event alone cannot tell which conversation a digest stands for.
    assert links == [[link], [] if secrets else [link]]
    (letters,) = asyncio.run(asked(app, html.unescape(link)))
    assert "<b>1\u00a0dead letter</b>" in letters.text


def test_a_story_with_decisions_that_cannot_be_found_is_marked_as_incomplete(world: World) -> None:
    with History(world.history, secrets=[b"a secret of another file"]) as other:
        consumer = Consumer("memory:", name="crm", handler=lambda _: None)
        consumer.observers.append(other.observer(consumer))
        consumer.process([ended(9, "c-1")])
    story, by_key = world.asked("/search?conversation=c-1", "/search?status=done")
    assert "1 copy since" in story.text
    assert "The history may have more decisions: 1 decision cannot be found by an id" in story.text
    assert "may have more decisions" not in by_key.text


def test_a_story_that_is_cut_by_the_limit_still_shows_the_run(tmp_path: Path) -> None:
    consumer = Consumer(MemoryStore(), name="crm", rules=[CALLS], handler=lambda _: None)
    uri = f"sqlite:///{tmp_path}/history.db"
    with History(uri) as kept:
        consumer.observers.append(kept.observer(consumer))
        for _ in range(6):
            consumer.process([ended(1, "c-1")])
    app = dashboard(Resources(lambda: consumer.store, name="crm", history=uri))
    (page,) = asyncio.run(asked(app, "/search?conversation=c-1&limit=4"))
    text = page.text.replace("\u00a0", " ")
    assert text.count("ran at ") == 1
    assert "4 or more copies since, the last at " in text
    assert "The latest 4 decisions, and 1 run before them. " in text


def test_a_view_shows_the_command_that_finds_the_same_decisions(world: World, run: Run) -> None:
    paths = ("/search?conversation=c-1", "/search?status=done,busy&since=1h&rule=calls", "/")
    for path, answer in zip(paths, world.asked(*paths), strict=True):
        (command,) = re.findall('<code id="command">(.*?)</code>', answer.text)
        _, *words = shlex.split(command)
        found = run(*words, "--json")
        assert found.code == 0, found.err
        if path != "/":
            many = sum(len(one["decisions"]) for one in found.documents[0])
            assert many == 3, path
    assert found.documents[0]["outcomes"] == {"done": 3, "duplicate": 1, "failed": 1}


def test_the_leases_of_this_process_are_shown_while_the_history_is_away(tmp_path: Path) -> None:
    consumer = Consumer(MemoryStore(), name="crm", rules=[CALLS], handler=lambda _: None)
    uri = f"sqlite:///{tmp_path}/none.db"
    with consumer.once(ended(1, "c-1")):
        resources = Resources(lambda: consumer.store, consumer=consumer, history=uri)
        (page,) = asyncio.run(asked(dashboard(resources), "/workers"))
    assert "there is no such file" in page.text
    assert re.search('<a href="/search[?]key=[0-9a-f]{32}">', page.text)


def test_a_command_has_the_options_of_what_it_reads() -> None:
    given = {
        "config": ["--config", "c.toml"],
        "store": ["--store", "s"],
        "history": ["--history", "h"],
        "redrive": ["--handler", "crm:take"],
    }
    command = Resources(MemoryStore, options=given).command
    assert command("stats") == "eventonce stats --config c.toml --store s"
    assert command("history") == "eventonce history --config c.toml --history h"
    assert command("workers") == "eventonce workers --config c.toml --history h"
    assert command("audit", "0a") == "eventonce audit 0a --config c.toml"
    assert command("shadow", "report") == "eventonce shadow report --config c.toml"
    assert command("letters", "drop") == "eventonce letters drop --config c.toml --store s"
    redrive = "eventonce letters redrive --config c.toml --store s --handler crm:take -- 1"
    assert command("letters", "redrive", "--", "1") == redrive


def test_every_field_of_the_search_is_an_option_of_the_command(run: Run) -> None:
    fields = dict.fromkeys((*FORM.first, *FORM.more), "x")
    known = set(re.findall(r"--[a-z]+", run("history", "--help").out))
    used = {one.partition("=")[0] for one in SearchQuery(fields, Search(), 1).options()}
    assert used <= known
    assert len(used) == len(fields) + 1


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("since=never", "since: 'never' must be a time"),
        ("key=xyz", "key: 'xyz' is not hexadecimal"),
        ("status=odd", "status: 'odd' is unknown; choose from"),
        ("status=done,odd", "status: 'odd' is unknown; choose from"),
        ("copies=odd", "copies: 'odd' is unknown; choose from same, other, unknown"),
        ("until=99999999999999d", "until: "),
    ],
)
def test_a_wrong_field_of_a_search_is_reported(world: World, query: str, said: str) -> None:
    (answer,) = world.asked(f"/search?{query}")
    assert answer.status_code == 400
    assert said in answer.text.replace("&#x27;", "'")


def test_odd_queries_are_answered_without_a_server_error(world: World) -> None:
    odd = ("/?range=%00", "/search?limit=-1", "/search?conversation=%00%ff", "/search?limit=999999")
    assert [one.status_code for one in world.asked(*odd)] == [200] * 4
    ends = ("/letters?since=9999-12-31T23:59-23:59", "/letters/drop?until=0001-01-01T00:00%2B23:59")
    assert [one.status_code for one in world.asked(*ends)] == [400] * 2
    (early,) = world.asked("/letters?since=0001-01-01")
    assert "--since=0001-01-01T00:00:00Z" in early.text
    assert world.asked("/nowhere")[0].status_code == 404
    assert world.asked("/static/../app.py")[0].status_code == 404


def test_a_missing_history_and_a_store_that_is_away_are_reported(tmp_path: Path) -> None:
    def away() -> Any:
        raise StoreUnavailable("redis://cache: no route to it")

    resources = Resources(away, history=f"sqlite:///{tmp_path}/none.db")
    answers = asyncio.run(asked(dashboard(resources), *PAGES))
    assert [one.status_code for one in answers] == [503, 503, 503, 503, 200, 200, 200]
    for answer in answers:
        assert "no route to it" in answer.text
        assert "Traceback" not in answer.text
        assert "data-live=" in answer.text, "the health is told anew once it is back"
    assert "there is no such file" in answers[0].text
    without = asyncio.run(asked(dashboard(Resources(MemoryStore)), *PAGES))
    assert [one.status_code for one in without] == [200] * 7
    assert "No history is kept" in without[0].text


def test_leases_of_all_processes_are_shown_and_the_leases_of_this_process_are_current(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease("call.ended", "calls", 2, "ab" * 16, 0, 0, 60_000)
    now = wall_clock()
    told = now - 180_000
    held = [structs.replace(lease, started=told - 9_000, renewed=told), lease]
    lost = structs.replace(lease, condition="lost", rule="<b>lost</b>")
    loads = {"other:1": Load(2, 1, 5, tuple(held)), process_name(): Load(1, 1, 1, (lost,))}
    with History(world.history) as kept, kept._tables() as tables:
        tables.states.tell(
            WorkerState(name, "crm", "http", name, told, told, load) for name, load in loads.items()
        )
    with monkeypatch.context() as patch:
        patch.setattr("eventonce.dashboard.pages.workers.wall_clock", lambda: now)
        (elsewhere,) = world.asked("/workers")
    text = plain(elsewhere.text)
    (command,) = re.findall('<code id="command">(.*?)</code>', elsewhere.text)
    assert command == f"eventonce workers --history {world.history}"
    assert "other:1 was last heard of 3 minutes ago; if it was killed, its leases ended by" in text
    assert re.search(r"w1\s+crm\s+sqs:calls\s+unknown\s", text)
    assert re.search(r"other:1\s+crm\s+http\s+3 minutes ago\s.*\s5\s+2\s", text)
    assert re.search(
        r"call\.\s*ended\s+calls\s+2\s+189 s\s+3 minutes ago\s+60 s\s+(ab){16}\s", text
    )
    assert re.search(r"2\s+waits\s+not held", text)
    assert re.search(r"<b>lost</b>.*lost to another run", html.unescape(elsewhere.text))
    assert "&lt;b&gt;lost&lt;/b&gt;" in elsewhere.text

    pages: list[str] = []

    def handle(_: Job) -> None:
        own = Resources(MemoryStore, history=world.history, consumer=crm)
        with closing(own), ThreadPoolExecutor() as pool:
            app = dashboard(own)
            pages.extend(
                it.text for it in pool.submit(asyncio.run, asked(app, "/workers")).result()
            )

    crm = Consumer("memory:", name="crm", rules=[CALLS], handler=handle)
    crm.process([ended(9, "c-9").replace(b"call.ended", b"call.begun")])
    (here,) = map(plain, pages)
    own = re.escape(process_name())
    assert re.search(rf"{own}\s+crm\s+http\s+now\s.*\s1\s", here)
    assert re.search(rf"{own}\s+call\.\s*begun\s+calls\s+1\s+\d+ s\s", here)
    assert "lost to another run" not in here, "its own gate knows better than the table"
    assert "other:1 was last heard of" in here


def plain(page: str) -> str:
    """The words of a page."""
    return re.sub("<[^>]*>", " ", page).replace("\u00a0", " ")


def test_a_store_that_hangs_does_not_hold_up_a_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    class Hanging(MemoryStore):
        def claim(self, *_: Any, **__: Any) -> Any:
            go_on.wait(PATIENCE)

    hanging = Hanging()
    resources = Resources(lambda: hanging, history=world.history)
    ask = BlockingCalls.__call__

    async def impatient(self: BlockingCalls, call: Callable[[], Any]) -> Any:
        # The history answers, however slow the machine is.
        return await ask(self, call, 0.05 if self._place == "store" else PATIENCE)

    monkeypatch.setattr(BlockingCalls, "__call__", impatient)
    try:
        pages = ["/store", "/", "/workers"] * 3
        answers = asyncio.run(asked(dashboard(resources), *pages))
        assert [one.status_code for one in answers] == [200] * 9
        assert "The store did not answer within 0.05 seconds" in answers[0].text
    finally:
        go_on.set()


def test_the_number_of_threads_that_wait_for_a_store_that_hangs_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = threading.Event()
    begun: list[int] = []

    def hang() -> None:
        begun.append(1)
        go_on.wait(PATIENCE)

    async def ask() -> list[Any]:
        asker = BlockingCalls("store")
        calls = (asker(hang, 0.05) for _ in range(20))
        told = await asyncio.gather(*calls, return_exceptions=True)
        go_on.set()
        return [*told, await asker(lambda: "answer", PATIENCE)]

    *refused, last = asyncio.run(ask())
    assert all(isinstance(one, Unavailable) for one in refused)
    # A thread that was started may not have come so far yet.
    until(lambda: len(begun) >= blocking_calls.MOST_CALLS)
    assert len(begun) == blocking_calls.MOST_CALLS
    assert last == "answer"


def test_an_exception_of_a_store_is_reported_as_unavailable_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> None:
        raise ValueError("a driver from elsewhere")

    with pytest.raises(Unavailable, match="The store cannot be asked: ValueError"):
        asyncio.run(BlockingCalls("store")(broken))
    assert "a driver from elsewhere" in caplog.text


def test_a_call_for_which_no_thread_could_be_started_takes_no_room_from_a_later_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def ask() -> str:
        asker = BlockingCalls("store")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            for _ in range(blocking_calls.MOST_CALLS):
                with pytest.raises(Unavailable):
                    await asker(lambda: "answer")
        return await asker(lambda: "answer", PATIENCE)

    assert asyncio.run(ask()) == "answer"


def test_a_page_that_fails_is_answered_with_500_and_the_error_is_logged(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("a secret of ours")

    monkeypatch.setattr("eventonce.dashboard.pages.overview._plot", broken)
    (answer,) = world.asked("/")
    assert (answer.status_code, "This page failed" in answer.text) == (500, True)
    assert "a secret of ours" not in answer.text
    assert "a secret of ours" in caplog.text
    assert "script-src 'nonce-" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


def counting(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls to the history and to the store from now on."""
    made: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            made.append(name)
            return call(*given, **named)

        return called

    history = world.resources.looking
    monkeypatch.setattr(history, "counts", counted("counts", history.counts))
    monkeypatch.setattr(world.resources, "stats", counted("stats", world.resources.stats))
    monkeypatch.setattr(world.resources, "probe", counted("probe", world.resources.probe))
    return made


def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of the snapshots, so that no snapshot is too old to be shared."""
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr("eventonce.dashboard.snapshots.time", clock)


def test_many_requests_make_no_more_calls_to_the_store_and_the_history_than_one_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_clock(monkeypatch)
    made = counting(world, monkeypatch)
    world.asked("/")
    alone = sorted(made)
    made.clear()
    second = dashboard(world.resources)
    asyncio.run(asked(second, *["/"] * 40))
    assert sorted(made) == alone


def test_a_history_that_is_away_is_asked_once_for_each_of_its_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The health, the overview and the workers need different counts."""
    asked_for: list[object] = []

    def away(since: int, until: int, fields: object = (), *_: object) -> None:
        asked_for.append(fields)
        raise StoreUnavailable("the history is away")

    stopped_clock(monkeypatch)
    monkeypatch.setattr(world.resources.looking, "counts", away)
    answers = world.asked(*["/", "/workers"] * 20)
    assert {one.status_code for one in answers} == {503, 200}
    assert all("the history is away" in one.text for one in answers)
    assert (len(asked_for), len(set(asked_for))) == (3, 3)


def test_the_rate_is_the_difference_of_two_snapshots_and_begins_anew_after_a_pause(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(
        "eventonce.dashboard.snapshots.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    snapshots = world.app.state.context.snapshots
    numbers = iter(range(100, 200))

    def work(many: int) -> None:
        with History(world.history) as kept:
            world.consumer.observers = [kept.observer(world.consumer)]
            world.consumer.process([ended(next(numbers), "c-9") for _ in range(many)])

    async def watch() -> list[float | None]:
        found: list[float | None] = []
        for seconds, many in ((0, 0), (2, 6), (2, 0), (3600, 50), (1, 4)):
            now[0] += seconds
            await asyncio.to_thread(work, many)
            rates = (await snapshots.latest.get()).rates
            found.append(rates["ran"] if rates is not None else None)
        return found

    assert asyncio.run(watch()) == [None, 3.0, 1.5, None, 4.0]
    past = asyncio.run(snapshots.past[LIVE_RANGE.name].get())
    # A minute's mean before the pause, and one point since.
    assert len([at for at, _ in snapshots.plotted(LIVE_RANGE, past) if at % 60_000 != 30_000]) <= 2


def test_no_call_to_the_store_or_the_history_is_made_without_a_request_for_a_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = counting(world, monkeypatch)

    async def request_a_page() -> None:
        app = dashboard(world.resources)
        await asked(app, "/static/dashboard.css")
        assert made == []
        await asked(app, "/")
        assert made
        # All tasks that a request began end, and no task is left that could begin another.
        begun = asyncio.all_tasks() - {asyncio.current_task()}
        if begun:
            await asyncio.wait(begun, timeout=PATIENCE)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(request_a_page())


def test_a_stream_sends_only_the_health_and_the_state_while_the_history_is_away(
    world: World,
) -> None:
    """The stream sends the health, and does not break."""

    async def watch() -> list[str]:
        context = world.app.state.context
        stream = _events(context, away)
        told = [await anext(stream) for _ in range(2)]
        context.snapshots.ended.set()
        assert [one async for one in stream] == []
        return told

    async def away() -> dict[str, str]:
        raise Unavailable("The history did not answer.")

    first, events = asyncio.run(watch())
    assert first.startswith("retry:")
    assert re.findall("^event: (.*)$", events, re.MULTILINE) == ["health", "state"]


SAID = [
    (Seen(), "Quiet. Nothing was decided in the last 10 minutes.", False),
    (Seen(recent={"done": 90, "duplicate": 10}, rate=1.25), "Healthy. 1.2 events a second", False),
    (Seen(recent={"done": 90}), "Healthy. In the last 10 minutes 90", False),
    (Seen(recent={"done": 99, "failed": 1}), "1 failure to be tried again", False),
    (Seen(recent={"done": 9, "failed": 1}), "1 of 10 runs failed", True),
    (Seen(recent={"done": 9, "dead": 2}), "2 deliveries ended as dead letters in", True),
    (
        Seen(recent={"done": 9, "dead": 2}, stats=Stats(9, 2)),
        "2 deliveries ended as dead letters in",
        True,
    ),
    (Seen(recent={"invalid": 1}), "1 delivery ended as a dead letter in the last", True),
    (Seen(recent={"invalid": 36}, stats=Stats(9, 7)), "36 deliveries ended as dead", True),
    (Seen(recent={"done": 9, "dead": 2}, stats=Stats(9, 0)), "Healthy.", False),
    (
        Seen(recent={"dead": 2}, stats=Stats(9, 0), queue=True),
        "2 deliveries ended as dead letters in",
        True,
    ),
    (Seen(recent={"dead": 7}, given_up_before=5, stats=Stats(9, 2)), "2 deliveries ended as", True),
    (Seen(recent={"dead": 7}, given_up_before=7, stats=Stats(9, 2)), "Healthy.", False),
    (Seen(recent={"done": 1, "busy": 9}), "9 of 10 events were busy", True),
    (Seen(recent={"ignored": 4}), "All 4 events were ignored", True),
    (Seen(recent={"unguarded": 1, "done": 5}), "1 event ran unprotected", True),
    (Seen(recent={"fenced": 1, "done": 99}), "Its effect may have happened twice", True),
    (Seen(no_history=True, stats=Stats(5, 1)), "1 dead letter waits", False),
    (Seen(recent={"done": 5}, stats=Stats(5, 2)), "2 dead letters wait", False),
    (Seen(store_fault="The store is gone.", history_fault="x"), "The store is gone.", True),
    (Seen(history_fault="The history is gone."), "The history is gone.", True),
    (Seen(worker_fault="The worker is ending."), "The worker is ending.", True),
]


@pytest.mark.parametrize(("seen", "said", "harm"), SAID)
def test_the_sentence_about_health_names_the_worst_fault_first(
    seen: Seen, said: str, harm: bool
) -> None:
    found = health(seen)
    assert said in _text(found)
    assert found.harm == harm


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"live": True, "draining": True, "overdue": 2}, "The worker is ending."),
        ({"live": False, "overdue": 2}, "The worker has failed; its log says why."),
        (
            {"live": True, "overdue": 1},
            "1 handler has run for longer than the timeout of the rule.",
        ),
        ({"live": True, "overdue": 2}, "2 handlers have run for longer than the timeout"),
    ],
)
def test_the_health_names_the_fault_of_the_worker_in_the_same_process(
    state: dict[str, Any], said: str
) -> None:
    app = dashboard(Resources(MemoryStore, state=lambda: state))
    found = asyncio.run(app.state.context.snapshots.latest.get())
    assert said in _text(found.health)


def _text(found: Health) -> str:
    text = re.sub("<[^>]*>", "", lead(found.sentence))
    return text.replace("\u00a0", " ").replace("\u202f", " ")


def test_the_health_counts_an_event_that_was_given_up_once_in_spite_of_its_copies(
    tmp_path: Path,
) -> None:
    consumer = Consumer(MemoryStore(), name="crm", rules=[CALLS], handler=reject)
    uri = f"sqlite:///{tmp_path}/history.db"
    with History(uri) as kept:
        consumer.observers.append(kept.observer(consumer))
        consumer.process([ended(1, "c-1"), ended(1, "c-1"), ended(2, "c-2")])
        consumer.process([ended(1, "c-1")])
    app = dashboard(Resources(lambda: consumer.store, name="crm", history=uri))
    snapshots = app.state.context.snapshots

    async def look() -> Health:
        await snapshots.store.get()
        found: Health = (await snapshots.latest.get()).health
        return found

    said = "2 deliveries ended as dead letters in the last 10 minutes. 2 dead letters wait."
    assert _text(asyncio.run(look())) == said
    (page,) = asyncio.run(asked(app, "/"))
    assert "kept for a redrive, and the later copies of these" in page.text, "it counts 4"


def test_every_status_belongs_to_a_group_that_is_shown() -> None:
    assert set(GROUP_OF.values()) == set(GROUPS)


def test_a_server_sent_event_keeps_every_line_of_its_text() -> None:
    assert event("x", "a\n\nb") == "event: x\ndata: a\ndata: \ndata: b\n\n"
    assert event("x", "a\rb\u2028c") == "event: x\ndata: a\ndata: b\ndata: c\n\n"


def test_sizes_are_shown_in_their_units() -> None:
    told = [size_of(octets).replace("\u202f", " ") for octets in (0, 999, 12_100_000, 5 * 10**15)]
    assert told == ["0 bytes", "999 bytes", "12.1 MB", "5e+03 TB"]
