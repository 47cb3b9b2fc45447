"""Dead letters on the dashboard, in a real browser: every action is clicked, stopped, found again
after a reload, refused to viewers, and run once for two operators."""

from __future__ import annotations

import re
import shlex
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from playwright.sync_api import Browser, Page, expect

from eventonce import Job, Rule
from eventonce.cli import main
from eventonce.config import Config, DashboardTable
from eventonce.dashboard import Resources, dashboard, server
from eventonce.dashboard.export_files import ExportFile
from eventonce.letters.runners import Runners
from eventonce.stores import open_store
from eventonce.types import Letter
from tests.helpers import PATIENCE, audit_of, call, until
from tests.integration.test_dashboard import AXE, Site, opened
from tests.servers.chromium import browser as chromium

AT = 1_763_280_000_000
HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>\u202egnp.exe"
CALLER = "+49 170 5550123"
RULE = Rule(name="call", key=["detail.call"])
BATCH = 20
SAME = {"sec-fetch-site": "same-origin"}


class Letters:
    """A store with dead letters, a handler that can be held up, and its dashboard."""

    def __init__(self, folder: Path, site: Site) -> None:
        self.folder = folder
        self.site = site
        self.runs: Counter[str] = Counter()
        self.go = threading.Semaphore(1_000_000)
        """The handler waits for a permit at each call."""

    def handle(self, job: Job) -> None:
        assert self.go.acquire(timeout=PATIENCE)
        self.runs[job.event.id] += 1

    def hold(self, after: int) -> None:
        """Let the handler run this number of times, and wait then."""
        self.go = threading.Semaphore(after)

    @property
    def left(self) -> int:
        store: Any = open_store(f"sqlite:///{self.folder}/store.db")
        try:
            return sum(1 for _ in store.letters())
        finally:
            store.close()

    @property
    def audit(self) -> list[dict[str, Any]]:
        return audit_of(self.folder / "audit.jsonl")


Serve = Callable[..., AbstractContextManager[Letters]]


def letter(number: int, reason: str, **more: Any) -> Letter:
    event = call(number, type=more.pop("type", "call"), conversationId=f"c-{number}", **more)
    return Letter(f"{number:032x}", "crm", "dead", reason, "call", b"k", event, AT + number, 3)


MANY = [letter(number, f"no customer for '{number}'") for number in range(120)]
FEW = [letter(1_000 + number, "https://crm.example/a answered 503") for number in range(5)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    uri = f"sqlite:///{tmp_path}/store.db"

    @contextmanager
    def serve(
        letters: list[Letter], settings: DashboardTable | None = None, *, runs: bool = True
    ) -> Iterator[Letters]:
        store: Any = open_store(uri)
        store.put_letters(letters)
        store.close()
        found = Letters(tmp_path, Site("", "", cast("Any", None)))
        config = Config(store=uri, name="crm", presets=[], rule=(RULE,))
        with Runners(config, lambda: open_store(uri), found.handle) as runners:
            resources = Resources(
                lambda: open_store(uri),
                name="crm",
                runners=runners if runs else None,
                audit=str(tmp_path / "audit.jsonl"),
                options={"store": ["--store", uri], "redrive": ["--handler", "crm:take"]},
            )
            app = dashboard(resources, settings)
            with server.listen("0") as listening, server.serving(app, listening):
                url = server.url_of(listening).rstrip("/")
                found.site = Site(server.link_of(app, listening), url, cast("Any", None))
                yield found
            resources.close()

    return serve


def confirm(page: Page, kind: str) -> None:
    """Go from a list through the dry run to the action."""
    page.get_by_role("link", name=f"{kind} …").click()
    expect(page.locator("h1")).to_have_text(f"{kind}: dry run")
    page.get_by_role("button", name=f"{kind} them now").click()


def downloaded(page: Page) -> tuple[str, list[bytes]]:
    """The name and the lines of the file that a click on Download brings."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    lines = Path(download.value.path()).read_bytes().splitlines()
    return download.value.suggested_filename, lines


def state(page: Page, text: str) -> None:
    expect(page.locator("#state")).to_contain_text(text)


def test_dead_letters_are_redriven_by_group_and_exported_and_dropped_by_reason(
    browser: Browser, serve: Serve
) -> None:
    with (
        serve([*MANY, *FEW]) as letters,
        opened(browser, letters.site, "/letters") as (page, _, said),
    ):
        expect(page.locator("#count")).to_have_text("125\u00a0dead letters.")
        page.get_by_role("link", name="no customer for …").click()
        expect(page.locator("#count")).to_have_text("120\u00a0dead letters.")
        command = page.locator("#command").inner_text()
        assert re.match("eventonce letters groups --name=crm --group=[0-9a-f]{8} --store", command)
        page.get_by_role("link", name="Redrive …").click()
        expect(page.locator("main")).to_contain_text("run again")
        expect(page.locator("main")).to_contain_text("The group: no customer for …")
        command = page.locator("#command").inner_text()
        assert command.startswith("eventonce letters redrive --dry-run --limit 120")
        assert command.endswith("--handler crm:take"), "without it stdout would be the handler"
        assert not letters.runs, "a dry run runs nothing"
        page.locator("input[name=limit]").fill("100")
        page.get_by_role("button", name="Redrive them now").click()
        page.wait_for_url(re.compile("/actions/"))
        beyond = "finished; there were more than that, and these stay, after"
        state(page, f"100\u00a0dead letters of 100 at most, {beyond}")
        assert (len(letters.runs), letters.left) == (100, 25)

        page.goto(f"{letters.site.url}/letters?reason=503")
        confirm(page, "Export")
        state(page, "5\u00a0dead letters of 5 at most, finished, after")
        command = page.locator("#command").inner_text()
        assert re.fullmatch("eventonce audit [0-9a-f]{16}", command)
        assert downloaded(page) == ("letters.jsonl", [one.event for one in FEW])
        assert letters.left == 25

        page.goto(f"{letters.site.url}/letters?reason=503")
        confirm(page, "Drop")
        state(page, "5\u00a0dead letters of 5 at most, finished, after")
        assert letters.left == 20
        told = [(one["action"], one["counts"], one["ended"]) for one in letters.audit]
        assert told == [
            ("redrive", {"done": 100}, "finished"),
            ("export", {"exported": 5}, "finished"),
            ("download", {"downloaded": 5}, "finished"),
            ("drop", {"dropped": 5}, "finished"),
        ]
        assert all(one["via"] == "dashboard" for one in letters.audit)
        page.goto(f"{letters.site.url}/actions")
        expect(page.locator("tbody tr")).to_have_count(3)
        assert not said


def test_one_dead_letter_is_shown_whole_and_redriven(browser: Browser, serve: Serve) -> None:
    with (
        serve([letter(1, "no such caller", caller=CALLER), *FEW]) as letters,
        opened(browser, letters.site, "/letters?reason=caller") as (page, _, said),
    ):
        page.locator("tbody a[href*='/letters/one']").click()
        expect(page.locator("pre")).to_contain_text(CALLER)
        expect(page.locator(".letter")).to_contain_text("c-1")
        command = page.locator("#command").inner_text()
        store = f"sqlite:///{letters.folder}/store.db"
        assert command == f"eventonce letters show --name=crm --store {store} -- {1:032x}"
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command)[1:])
        assert ended.value.code == 0, "it shows the same"
        confirm(page, "Redrive")
        state(page, "1\u00a0dead letter of 1 at most, finished")
        assert letters.runs == {"id-1": 1}
        gone = page.goto(f"{letters.site.url}/letters/one?id={1:032x}")
        assert gone is not None
        assert gone.status == 404
        said.clear()


def test_a_redrive_survives_a_reload_goes_on_without_a_page_and_can_be_stopped(
    browser: Browser, serve: Serve
) -> None:
    many = [letter(number, "no customer") for number in range(300)]
    with serve(many) as letters:
        letters.hold(after=BATCH + 5)
        with opened(browser, letters.site, "/letters") as (page, _, said):
            confirm(page, "Redrive")
            state(page, f"{BATCH}\u00a0dead letters of 300 at most, under way")
            link = page.url
            page.reload()
            assert page.url == link
            state(page, "under way")
        # No page is open now, and the redrive goes on.
        letters.go.release(BATCH)
        until(lambda: len(letters.runs) == 2 * BATCH + 5, lambda: len(letters.runs))
        with opened(browser, letters.site, link.removeprefix(letters.site.url)) as (page, _, said):
            state(page, f"{2 * BATCH}\u00a0dead letters of 300 at most, under way")
            page.evaluate("window.same = true")
            letters.go.release(BATCH)
            state(page, f"{3 * BATCH}\u00a0dead letters of 300")
            assert page.evaluate("window.same"), "the page was kept up to date, and not reloaded"
            page.get_by_role("button", name="Stop").click()
            state(page, "stops after the batch under way")
            letters.go.release(1_000)
            state(page, f"{4 * BATCH}\u00a0dead letters of 300 at most, stopped")
            expect(page.get_by_role("button", name="Stop")).to_have_count(0)
            assert not said
        assert (len(letters.runs), letters.left) == (4 * BATCH, 300 - 4 * BATCH)
        (line,) = letters.audit
        assert (line["counts"], line["ended"]) == ({"done": 4 * BATCH}, "stopped")


def test_a_stopped_export_is_shown_live_and_downloaded_as_a_partial_file(
    browser: Browser, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [letter(number, "no customer") for number in range(300)]
    # The number of batches that may be written.
    go, write = threading.Semaphore(1), ExportFile.write

    def patient(file: ExportFile, lines: bytes) -> None:
        assert go.acquire(timeout=PATIENCE)
        write(file, lines)

    monkeypatch.setattr(ExportFile, "write", patient)
    with (
        serve(many) as letters,
        opened(browser, letters.site, "/letters") as (page, _, said),
    ):
        confirm(page, "Export")
        state(page, f"{BATCH}\u00a0dead letters of 300 at most, under way")
        expect(page.locator("progress")).to_have_attribute("value", str(BATCH))
        expect(page.get_by_role("button", name="Download")).to_have_count(0)
        page.evaluate("window.same = true")
        go.release()
        state(page, f"{2 * BATCH}\u00a0dead letters of 300")
        assert page.evaluate("window.same"), "the page was kept up to date, and not reloaded"
        page.get_by_role("button", name="Stop").click()
        state(page, "stops after the batch under way")
        page.evaluate("window.same = true")
        go.release(100)
        state(page, f"{3 * BATCH}\u00a0dead letters of 300 at most, stopped")
        expect(page.locator("main")).to_contain_text(
            f"it ended after {3 * BATCH}\u00a0dead letters."
        )
        page.evaluate(AXE)
        assert not page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        name, lines = downloaded(page)
        assert name == "letters-partial.jsonl"
        assert lines == [one.event for one in many[: 3 * BATCH]]
        expect(page.locator("main")).to_contain_text("downloaded by")
        expect(page.get_by_role("button", name="Download")).to_have_count(0)
        assert page.evaluate("window.same"), "nothing was reloaded"
        assert letters.left == 300
        told = [(one["action"], one["counts"], one["ended"]) for one in letters.audit]
        assert told == [
            ("export", {"exported": 3 * BATCH}, "stopped"),
            ("download", {"downloaded": 3 * BATCH}, "finished"),
        ]
        assert not said


PEOPLE = DashboardTable(
    viewers={"vic": "vic-password"},
    operators={"ann": "ann-password", "ben": "ben-password"},
)


def as_(name: str) -> dict[str, Any]:
    return {"http_credentials": {"username": name, "password": f"{name}-password"}}


def test_two_operators_at_once_run_no_event_twice_and_a_third_action_is_refused(
    browser: Browser, serve: Serve
) -> None:
    with serve(MANY, PEOPLE) as letters:
        letters.hold(after=5)
        with (
            opened(browser, letters.site, "/letters", **as_("ann")) as (ann, _, _),
            opened(browser, letters.site, "/letters", **as_("ben")) as (ben, _, _),
        ):
            confirm(ann, "Redrive")
            until(lambda: len(letters.runs) == 5, lambda: len(letters.runs))
            confirm(ben, "Redrive")
            state(ben, "under way")
            third = letters.site.url + "/letters"
            ann.context.new_page().goto(third)
            page = ann.context.pages[-1]
            confirm(page, "Drop")
            expect(page.locator("h1")).to_contain_text("2 actions are under way already")
            assert letters.left == 120
            letters.go.release(1_000)
            state(ann, "finished")
            state(ben, "finished")
        assert len(letters.runs) == 120
        assert set(letters.runs.values()) == {1}
        assert letters.left == 0
        assert {one["who"] for one in letters.audit} == {"ann", "ben"}


def test_a_viewer_sees_no_action_no_values_and_is_refused(browser: Browser, serve: Serve) -> None:
    secret = letter(1, f"no customer for Anna Smith with {CALLER}", caller=CALLER, source="Anna")
    with (
        serve([secret], PEOPLE) as letters,
        opened(browser, letters.site, "/letters", **as_("vic")) as (page, _, _),
    ):
        expect(page.locator("main")).to_contain_text("You may look and not act")
        expect(page.locator("main")).to_contain_text("no customer for … with …")
        assert page.get_by_role("link", name="Redrive …").count() == 0
        texts = [page.content()]
        page.locator("tbody a[href*='/letters/one']").click()
        expect(page.locator("pre")).to_contain_text('"detail-type": "call"')
        expect(page.locator("pre")).to_contain_text("[text, 15\u00a0characters]")
        texts.append(page.content())
        for text in texts:
            assert CALLER not in text
            assert "Anna" not in text
        for kind in ("redrive", "drop", "export"):
            url = f"{letters.site.url}/letters/{kind}"
            assert page.request.get(url).status == 403
            assert page.request.post(url, form={"limit": "1"}, headers=SAME).status == 403
        assert (letters.left, sum(letters.runs.values())) == (1, 0)
        assert not (letters.folder / "audit.jsonl").exists()


def test_another_site_can_do_nothing_in_the_name_of_an_operator(
    browser: Browser, serve: Serve
) -> None:
    with (
        serve(FEW, PEOPLE) as letters,
        opened(browser, letters.site, "/letters", **as_("ann")) as (page, _, _),
    ):
        form = (
            f'<form action="{letters.site.url}/letters/drop" method="post">'
            '<input name="limit" value="5"><button>Win a prize</button></form>'
        )
        page.route(
            "http://evil.example/", lambda route: route.fulfill(body=form, content_type="text/html")
        )
        page.goto("http://evil.example/")
        page.get_by_role("button").click()
        expect(page.locator("main")).to_contain_text("Another site sent this request")
        assert letters.left == 5
        frame = f'<iframe src="{letters.site.url}/letters"></iframe>'
        page.unroute("http://evil.example/")
        page.route(
            "http://evil.example/",
            lambda route: route.fulfill(body=frame, content_type="text/html"),
        )
        page.goto("http://evil.example/")
        page.wait_for_load_state("networkidle")
        framed = [one.locator("#count").count() for one in page.frames[1:] if one.url]
        assert not any(framed), "no page of another site may show it"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_events_are_text_and_every_page_is_accessible(
    browser: Browser, serve: Serve, scheme: Any
) -> None:
    bad = [letter(n, f"{HOSTILE} {'x' * n}", type=HOSTILE, name=HOSTILE) for n in range(3)]
    long = letter(9, "y" * 5_000, text="z" * 100_000)
    deep = Letter("deep", "crm", "invalid", "not JSON", "", b"", b"[" * 5_000, AT)
    paths = [
        *(
            "/letters",
            "/letters?since=1h",
            f"/letters/one?id={1:032x}",
            f"/letters/one?id={9:032x}",
        ),
        *("/letters/one?id=deep", "/letters/redrive", "/letters/drop?reason=x", "/letters/export"),
        "/actions",
    ]
    # The dark scheme differs only in its colours.
    paths = paths if scheme == "light" else paths[:3]
    with (
        serve([*bad, long, deep]) as letters,
        opened(browser, letters.site, "/letters", 360, scheme) as (page, requests, said),
    ):
        for path in paths:
            page.goto(f"{letters.site.url}{path}")
            sizes = "[document.documentElement.scrollWidth, innerWidth]"
            assert page.evaluate(sizes) == [360, 360], path
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            page.evaluate(AXE)
            found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
            assert not [(one["id"], one["nodes"][0]["html"][:200]) for one in found], path
        page.goto(f"{letters.site.url}/letters?reason=alert")
        expect(page.locator("main")).to_contain_text("<script>alert(1)</script>")
        confirm(page, "Redrive")
        state(page, "finished")
        page.evaluate(AXE)
        assert not page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        assert not said
        assert all(one.startswith((letters.site.url, "data:")) for one in requests)


def test_a_filter_is_a_link_that_survives_a_reload(browser: Browser, serve: Serve) -> None:
    with (
        serve([*MANY, *FEW]) as letters,
        opened(browser, letters.site, "/letters") as (page, _, said),
    ):
        page.locator("input[name=conversation]").fill("c-7")
        page.locator("select[name=status]").select_option("dead")
        page.get_by_role("button", name="Filter").click()
        page.wait_for_url(re.compile("conversation=c-7"))
        expect(page.locator("#count")).to_have_text("1\u00a0dead letter.")
        before = page.url, page.locator("tbody").all_inner_texts()
        page.reload()
        assert before == (page.url, page.locator("tbody").all_inner_texts())
        assert page.locator("input[name=conversation]").input_value() == "c-7"
        wrong = page.goto(f"{letters.site.url}/letters?since=yesterday")
        assert wrong is not None
        assert wrong.status == 400
        expect(page.locator("h1")).to_contain_text("since: 'yesterday' must be a time")
        said.clear()


def test_without_a_handler_the_page_names_the_missing_setting(
    browser: Browser, serve: Serve
) -> None:
    with (
        serve(FEW, runs=False) as letters,
        opened(browser, letters.site, "/letters") as (page, _, _),
    ):
        expect(page.locator("main")).to_contain_text("write a [[sink]] table into eventonce.toml")
        assert page.get_by_role("link", name="Redrive …").count() == 0
        assert page.request.get(f"{letters.site.url}/letters/redrive").status == 409
        answer = page.request.post(
            f"{letters.site.url}/letters/redrive", form={"limit": "5"}, headers=SAME
        )
        assert answer.status == 409
        confirm(page, "Drop")
        state(page, "finished")
        assert letters.left == 0


def test_hidden_pages_hold_no_stream_and_are_updated_when_they_are_shown(
    browser: Browser, serve: Serve
) -> None:
    with serve(FEW) as letters, opened(browser, letters.site, "/letters") as (page, _, said):
        # As a browser reports to a page in a hidden tab.
        page.context.add_init_script(
            "Object.defineProperty(document, 'hidden', {get: () => !window.seen})"
        )
        for _ in range(8):
            behind = page.context.new_page()
            behind.goto(f"{letters.site.url}/store", wait_until="load")
        streams = "performance.getEntriesByType('resource').filter(it => it.name.includes('/live'))"
        assert behind.evaluate(f"{streams}.length") == 0
        behind.evaluate("document.getElementById('health').textContent = 'old'")
        turn = "document.dispatchEvent(new Event('visibilitychange'))"
        behind.evaluate(f"window.seen = true; {turn}")
        expect(behind.locator("#health")).not_to_have_text("old")
        with behind.expect_event("requestfailed", lambda request: "/live" in request.url):
            behind.evaluate(f"window.seen = false; {turn}")
        behind.evaluate("document.getElementById('health').textContent = 'old'")
        behind.evaluate(f"window.seen = true; {turn}")
        expect(behind.locator("#health")).not_to_have_text("old")
        assert not said


def test_a_page_shows_that_its_server_has_ended(browser: Browser, serve: Serve) -> None:
    with serve(FEW) as letters:
        gone = opened(browser, letters.site, "/letters")
        page, _, _ = gone.__enter__()
        expect(page.locator("#health")).not_to_have_class("harm")
    try:
        expect(page.locator("#health")).to_contain_text("This page is not live now")
        expect(page.locator("[data-part=state]")).to_have_text("Not live")
    finally:
        gone.__exit__(None, None, None)
