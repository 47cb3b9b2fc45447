"""The dashboard in a real browser, beside the worker of the demo: every page is read on every
screen, by keyboard and without a script; live updates disturb no reader; and a call is followed
through its copies to its dead letter."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from eventonce import Consumer
from eventonce.core.planner import REDRIVEN
from eventonce.dashboard import dashboard, server
from eventonce.demo import live
from eventonce.demo.live import DEMO_DAY, MENDED_AFTER, Played, playing
from eventonce.history import History, Search
from eventonce.stores.memory import MemoryStore
from tests.helpers import PATIENCE, audit_of, call, until
from tests.integration.test_dashboard_commands import pasted
from tests.servers.chromium import browser as chromium

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
HOSTILE = "</title><script>alert('type')</script><img src=x onerror=alert(1)>\u202egnp.exe"
PAGES = (
    *("/", "/?range=24h", "/search?limit=10", "/search?status=dead&limit=10"),
    *("/workers", "/store", "/shadow"),
)
HIDDEN = """[...document.querySelectorAll('.scroll')]
    .filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText)"""
LABELS = """[...document.querySelectorAll('[data-part=types] tbody tr:first-child td')]
    .map(one => getComputedStyle(one, '::before').content.replaceAll('"', '').trim())"""
Scheme = Literal["light", "dark"]


class Site(NamedTuple):
    """A dashboard that is served, and the demo that it shows."""

    link: str
    url: str
    played: Played


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The demo, fast until its CRM is mended, and then slow enough to outlast the tests."""
    folder = tmp_path_factory.mktemp("demo")
    scenario = DEMO_DAY._replace(events=4_000)
    with playing(folder, rate=60.0, scenario=scenario) as played:
        _store_hostile_events(played.resources.history)
        app = dashboard(played.resources)
        with server.listen("0") as listening, server.serving(app, listening):
            thread = threading.Thread(target=played.worker.run, daemon=True)
            thread.start()
            try:
                until(lambda: played.crm.given_up >= MENDED_AFTER, lambda: played.crm.given_up)
                link = server.link_of(app, listening)
                with pytest.MonkeyPatch.context() as slower:
                    slower.setattr(live, "SLOW_EVERY", 1)
                    yield Site(link, server.url_of(listening).rstrip("/"), played)
            finally:
                played.worker.stop()
                thread.join(30)


def _store_hostile_events(history: str) -> None:
    with (
        Consumer(MemoryStore(), name="hostile", rules="eventbridge") as consumer,
        History(history, worker=HOSTILE) as kept,
    ):
        consumer.on()(lambda _: None)
        consumer.observers.append(kept.observer(consumer, HOSTILE))
        consumer.process([call(1, type=HOSTILE)] * 2)


class Seen(NamedTuple):
    """A page that was opened, and the messages of the browser meanwhile."""

    page: Page
    requests: list[str]
    said: list[str]


@contextmanager
def opened(
    browser: Browser,
    site: Site,
    path: str,
    width: int = 1280,
    scheme: Scheme = "light",
    **more: Any,
) -> Iterator[Seen]:
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, **more
    )
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    seen = Seen(page, [], [])
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("console", lambda message: seen.said.append(message.text))
    page.on("pageerror", lambda error: seen.said.append(str(error)))
    page.on("dialog", lambda dialog: seen.said.append(dialog.message))
    page.goto(site.link)
    page.wait_for_url(f"{site.url}/")
    page.goto(f"{site.url}{path}")
    try:
        yield seen
    finally:
        context.close()


def test_a_page_fits_every_width_and_asks_no_other_host(browser: Browser, site: Site) -> None:
    for width in (360, 390, 1280):
        with opened(browser, site, "/", width) as (page, requests, said):
            for path in (*PAGES, "/letters", "/actions", "/letters/redrive", "/letters/export"):
                page.goto(f"{site.url}{path}")
                sizes = "[document.documentElement.scrollWidth, innerWidth]"
                assert page.evaluate(sizes) == [width, width], path
                assert page.evaluate(HIDDEN) == [], "nothing is scrolled sideways to be seen"
            assert not said
            assert all(one.startswith((f"{site.url}/", "data:")) for one in requests)


def test_on_a_telephone_each_number_has_the_name_of_its_column(
    browser: Browser, site: Site
) -> None:
    named = ["events", "copies", "not settled", "dead letters", "ms a run"]
    for width, labels in ((390, named), (1280, ["none"] * 5)):
        with opened(browser, site, "/", width) as (page, _, _):
            page.wait_for_selector("[data-part=types] td")
            assert page.evaluate(LABELS) == labels
            assert page.locator("[data-part=types] thead").is_visible() == (width == 1280)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_violates_no_rule_of_accessibility(
    browser: Browser, site: Site, scheme: Scheme
) -> None:
    with opened(browser, site, "/", 1280, scheme) as (page, _, _):
        # No part of the page is replaced during the check, because no stream is answered.
        page.route(re.compile("/live"), lambda _: None)
        dead = page.request.get(f"{site.url}/search?status=dead").text()
        (story, *_) = re.findall(r'href="(/search\?conversation=[^"]+)"', dead)
        # The dark scheme differs only in its colours.
        for path in (story, *(PAGES if scheme == "light" else PAGES[:1])):
            page.goto(f"{site.url}{path}")
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            page.evaluate(AXE)
            found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
            assert not [(one["id"], one["nodes"][0]["html"][:200]) for one in found], path


def test_every_link_leads_to_a_page(browser: Browser, site: Site) -> None:
    with opened(browser, site, "/") as (page, _, _):
        asked: set[str] = set()
        for path in PAGES:
            text = page.request.get(f"{site.url}{path}").text()
            asked |= {
                one.replace("&amp;", "&") for one in re.findall(r'<a [^>]*href="(/[^"]*)"', text)
            }
        for path in sorted(asked):
            assert page.request.get(f"{site.url}{path}").status == 200, path
        assert len(asked) > 30


def test_the_pages_are_used_by_keyboard(browser: Browser, site: Site) -> None:
    with opened(browser, site, "/?live=off") as (page, _, said):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        page.wait_for_function("document.activeElement.id === 'content'")
        for name in ("Search", "Workers", "Store", "Shadow", "Overview"):
            page.locator("nav a", has_text=name).focus()
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            page.keyboard.press("Enter")
            expect(page.locator("nav a[aria-current=page]")).to_have_text(name)
        page.goto(f"{site.url}/search")
        page.locator("input[name=conversation]").focus()
        for name in ("event", "reason", "status"):
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.name") == name
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.name") == "subject"
        assert not said


def test_live_updates_keep_the_focus_the_selection_and_the_scroll_position(
    browser: Browser, site: Site
) -> None:
    with opened(browser, site, "/", 800) as (page, requests, said):
        page.wait_for_selector("#plot canvas")
        # The table is wider than its box then, and is scrolled sideways.
        page.evaluate("document.querySelector('[data-part=outcomes]').style.width = '200px'")
        page.evaluate("window.canvas = document.querySelector('#plot canvas')")
        page.evaluate("getSelection().selectAllChildren(document.querySelector('#health'))")
        with page.expect_response("**/rates*") as again:
            page.evaluate("document.dispatchEvent(new Event('live'))")
        again.value.finished()
        page.locator("[data-part=types] a").first.focus()
        page.evaluate("window.focused = document.activeElement")
        page.evaluate("window.scrollTo(0, 300)")
        page.evaluate("document.querySelector('[data-part=outcomes] .scroll').scrollLeft = 100")
        _see_more(page, site)
        streams = sum("/live/overview" in one for one in requests)
        _see_more(page, site)
        assert page.evaluate("window.canvas === document.querySelector('#plot canvas')")
        assert page.evaluate("document.activeElement === window.focused")
        scrolled = "document.querySelector('[data-part=outcomes] .scroll').scrollLeft"
        assert page.evaluate(scrolled) == 100
        assert page.evaluate("getSelection().toString()"), "a text can be marked and copied"
        assert page.evaluate("window.scrollY") == 300
        assert sum("/live/overview" in one for one in requests) == streams
        assert not said
        page.get_by_text("Pause").click()
        expect(page.locator("#pause")).to_have_text("Go on")
        assert page.locator("[data-live]").count() == 0


def _see_more(page: Page, site: Site) -> None:
    """Make new decisions, and wait until the page shows them."""
    outcomes = "document.querySelector('[data-part=outcomes]').textContent"
    before = page.evaluate(outcomes)
    _store_hostile_events(site.played.resources.history)
    page.wait_for_function(f"before => {outcomes} !== before", arg=before)


COUNTED = """
window.came = 0;
const add = EventSource.prototype.addEventListener;
EventSource.prototype.addEventListener = function (name, listener) {
  add.call(this, name, (event) => {
    listener(event);
    window.came += name === "outcomes";
  });
};
"""
"""A script that counts the updates of the outcomes."""


def test_a_click_is_not_lost_to_an_update(browser: Browser, site: Site) -> None:
    """A person keeps the button down for a tenth of a second, in which a link may be replaced."""
    with opened(browser, site, "/store") as (page, _, said):
        page.add_init_script(COUNTED)
        page.goto(f"{site.url}/")
        outcomes = page.locator("[data-part=outcomes]")
        outcomes.locator("h2").hover()
        for _ in range(2):
            page.mouse.down()
            before, came = outcomes.inner_text(), page.evaluate("came")
            page.wait_for_function("before => came > before", arg=came)
            assert outcomes.inner_text() == before
            page.mouse.up()
            expect(outcomes).not_to_have_text(before, use_inner_text=True)
        outcomes.locator("a", has_text="Dead letters").hover()
        page.mouse.down()
        page.wait_for_function("before => came > before", arg=page.evaluate("came"))
        page.mouse.up()
        page.wait_for_url(re.compile("status=dead"))
        assert not said


def test_a_page_whose_stream_was_refused_becomes_live_later(browser: Browser, site: Site) -> None:
    """As while too many live pages are open: a browser does not repeat a refused stream. The plot
    gets the points of the meantime."""
    loads = "performance.getEntriesByType('resource').filter(it => it.name.includes('/rates'))"
    stream = re.compile("/live")
    with opened(browser, site, "/?live=off") as (page, _, _):
        page.route(stream, lambda route: route.fulfill(status=503))
        page.goto(f"{site.url}/")
        expect(page.locator("#health")).to_contain_text("This page is not live now")
        with page.expect_response(stream) as again:
            pass
        assert again.value.status == 503
        page.unroute(stream)
        expect(page.locator("#health")).not_to_contain_text("This page is not live now")
        expect(page.locator("[data-part=state]")).not_to_have_text("Not live")
        page.wait_for_function(f"{loads}.length === 2")


def test_a_view_survives_a_reload(browser: Browser, site: Site) -> None:
    with opened(browser, site, "/") as (page, _, _):
        page.get_by_role("link", name="24 hours").click()
        current = page.locator(".choices [aria-current]")
        expect(current).to_have_text("24 hours")
        page.reload()
        expect(current).to_have_text("24 hours")
        expect(page.locator("#command")).to_contain_text("--since 24h")
        page.locator("[data-part=types] a").first.click()
        found = page.locator("tbody tr")
        expect(found.first).to_be_visible()
        before = page.url, page.locator("input[name=type]").input_value()
        assert before[1]
        page.reload()
        assert before == (page.url, page.locator("input[name=type]").input_value())


def test_every_filter_of_the_search_filters(browser: Browser, site: Site) -> None:
    filters = {
        "reason": ("CRM", 5, "the CRM answered"),
        "rule": ("genesys.wrapup", 4, "genesys.wrapup"),
        "type": ("v2.users.{id}.activity", 2, "v2.users.{id}.activity"),
        "consumer": ("hostile", 1, "duplicate"),
    }
    with opened(browser, site, "/search") as (page, _, said):
        for name, (value, _, _) in filters.items():
            page.goto(f"{site.url}/search")
            page.locator("details summary").first.click()
            page.locator(f"input[name={name}]").fill(value)
            page.get_by_role("button", name="Search").click()
            page.wait_for_url(re.compile(f"{name}="))
            rows = page.locator("tbody tr")
            assert rows.count() >= 1, name
        for name, (value, column, expected) in filters.items():
            if name != "consumer":
                page.goto(f"{site.url}/search?{name}={value}")
                cells = page.locator(f"tbody td:nth-child({column + 1})").all_inner_texts()
                assert cells, name
                assert all(expected in cell for cell in cells), name
        page.goto(f"{site.url}/search")
        page.locator("select[name=status]").select_option("duplicate")
        page.get_by_role("button", name="Search").click()
        page.wait_for_url(re.compile("status=duplicate"))
        assert set(page.locator("tbody td:nth-child(2)").all_inner_texts()) == {"duplicate"}
        page.goto(f"{site.url}/search?until=10d")
        expect(page.locator("main .note")).to_contain_text("The history has no such decision;")
        assert not said


def test_a_type_with_invisible_characters_is_found_by_each_search(
    browser: Browser, site: Site
) -> None:
    with opened(browser, site, "/search") as (page, _, said):
        page.locator("details summary").first.click()
        page.locator("input[name=type]").fill(HOSTILE)
        for _ in range(2):
            with page.expect_navigation():
                page.get_by_role("button", name="Search").click()
            assert page.locator("input[name=type]").input_value() == HOSTILE
            expect(page.locator("tbody tr").nth(1)).to_be_visible()
        assert "\u202e" not in page.locator("main").inner_text()
        assert not said


def test_a_call_is_followed_through_its_copies_to_its_dead_letter(
    browser: Browser, site: Site
) -> None:
    with opened(browser, site, "/") as (page, _, said):
        page.locator("[data-part=outcomes] a", has_text="Dead letters").click()
        page.wait_for_url(re.compile("status=dead"))
        page.locator("tbody tr a[href*=conversation]").last.click()
        expect(page.locator("h1")).to_contain_text("Conversation")
        story = page.locator(".chapter", has_text="kept as a dead letter").first
        expect(story).to_contain_text("failed once")
        expect(story).to_contain_text("the CRM answered 503")
        story.locator("summary").click()
        steps = story.locator(".steps li")
        expect(steps.first).to_contain_text("failed")
        assert steps.count() >= 2
        page.goto(f"{site.url}/search?status=duplicate")
        page.locator("tbody tr a[href*=conversation]").first.click()
        expect(page.locator(".chapter", has_text=re.compile("cop(y|ies)")).first).to_be_visible()
        assert not said


def test_leases_of_the_worker_are_shown_while_they_are_held(browser: Browser, site: Site) -> None:
    with opened(browser, site, "/workers") as (page, _, _):
        expect(page.locator("[data-part=leases] tbody tr").first).to_be_visible()
        expect(page.locator("[data-part=workers] tbody")).to_contain_text("demo-worker")


def test_the_command_is_copied(browser: Browser, site: Site) -> None:
    with opened(browser, site, "/store", permissions=["clipboard-read", "clipboard-write"]) as (
        page,
        _,
        said,
    ):
        # The word stays until the test has seen it.
        page.evaluate("window.setTimeout = () => 0")
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.locator("#command").inner_text()
        assert copied.startswith("eventonce stats --config")
        assert not said


def test_the_dashboard_works_without_a_script(browser: Browser, site: Site) -> None:
    with opened(browser, site, "/", java_script_enabled=False) as (page, _, _):
        expect(page.locator("[data-part=outcomes] tbody tr")).to_have_count(5)
        expect(page.locator("#plot")).to_contain_text("its numbers are below")
        assert page.get_by_role("button", name="Copy").count() == 0
        page.get_by_role("link", name="Search").click()
        page.locator("select[name=status]").select_option("dead")
        page.get_by_role("button", name="Search").click()
        page.wait_for_url(re.compile("status=dead"))
        page.locator("tbody tr a[href*=conversation]").first.click()
        expect(page.locator(".chapter").first).to_be_visible()


def test_the_demo_is_redriven_by_the_command_of_its_page(
    browser: Browser, site: Site, tmp_path: Path
) -> None:
    with opened(browser, site, "/letters") as (page, _, _):
        page.get_by_role("link", name="the CRM answered 503").first.click()
        page.get_by_role("link", name="Redrive").click()
        many = int(page.locator("form input[name=limit]").input_value())
        command = page.locator("#command").inner_text()
        dry = pasted(tmp_path, command)
        assert (dry.returncode, msgspec.json.decode(dry.stdout)["would_run"]) == (0, many)
        acting = command.replace(" --dry-run", "").replace(f"--limit {many}", "--limit 3")
        done = pasted(tmp_path, acting)
        assert (done.returncode, done.stderr) == (0, '{"done":3}\n')
        page.reload()
        expect(page.locator("form input[name=limit]")).to_have_value(str(many - 3))
        page.goto(f"{site.url}/actions")
        told = pasted(tmp_path, page.locator("#command").inner_text())
        assert [one["counts"] for one in map(msgspec.json.decode, told.stdout.splitlines())] == [
            {"done": 3}
        ]
    with History(site.played.resources.history, look=True) as history:
        ran = history.find(Search(consumer="demo", status="done"), 100_000)
    assert [one.channel for one in ran].count(REDRIVEN) == 3


def test_a_hundred_dead_letters_are_redriven_by_filter(
    browser: Browser, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test of this module, because it leaves no dead letter."""
    monkeypatch.setattr(live, "SLOW_EVERY", 60)
    with opened(browser, site, "/") as (page, _, said):
        page.locator("nav a", has_text="Dead letters").click()
        page.get_by_role("link", name="the CRM answered 503").first.click()
        page.wait_for_url(re.compile("group="))
        page.get_by_role("link", name="Redrive").click()
        many = int(page.locator("input[type=number], form input[name=limit]").first.input_value())
        assert many > 100
        page.get_by_role("button", name="Redrive").click()
        page.wait_for_url(re.compile("/actions/"))
        expect(page.locator("main")).to_contain_text(f"{many} dead letters")
        expect(page.get_by_role("button", name="Stop")).to_have_count(0)
        expect(page.locator("tbody tr", has_text="done")).to_contain_text(str(many))
        *_, line = audit_of(Path(site.played.resources.audit))
        assert line["counts"] == {"done": many}
        page.locator("nav a", has_text="Dead letters").click()
        expect(page.locator("#count")).to_have_text("0 dead letters.")
        assert not said
