"""The pages of the study in a real browser: they load nothing, run no script of an event, fit a
telephone, and can be read by keyboard and by a screen reader, in light and in dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import chdir
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from playwright.sync_api import Browser, Page

from eventonce.cli import main
from eventonce.study.page.shadowed import shadow_page
from eventonce.study.shadow import Drops, Guarded, ShadowReport
from eventonce.study.simulate import Scenario, capture
from tests.servers.chromium import browser as chromium

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
SECRETS = ("+49 170 555 01", "alice@example.com")
HOSTILE = {
    "<script>alert('script')</script>": '"><img src=x onerror=alert(1)>',
    "style": "</style><style>body{display:none}</style><svg onload=alert(2)>",
    "direction": "\u202egnp.exe \u05e9\u05dc\u05d5\u05dd",
    "long": "x" * 100_000,
    "caller": SECRETS[0],
    "mail": SECRETS[1],
}


SHADOWED = ShadowReport(
    events=12_000,
    drops=1_204,
    by_type=[
        Drops(
            "</title><script>alert(3)</script>" + "long" * 50,
            "calls",
            "another transport id",
            1_204,
        )
    ],
    held_back={},
    differing=2,
    examples=[("<b>one</b>", "two")],
    unmatched=3,
    span=7 * 86_400_000,
    longest_gap=345_599_000,
    remember=864_000_000,
    guard=Guarded(10_000, 900, 304, 41),
    missing=["1,204 drops have their original in the record, 3,000 are needed"],
    wait=864_000_000,
)


class Seen(NamedTuple):
    """A page that was opened, with its requests and the messages of the browser."""

    page: Page
    requests: list[str]
    said: list[str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


def opened(
    browser: Browser, path: Path, width: int, scheme: Literal["light", "dark"] = "light"
) -> Seen:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    seen = Seen(page, [], [])
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("console", lambda message: seen.said.append(message.text))
    page.on("pageerror", lambda error: seen.said.append(str(error)))
    page.on("dialog", lambda dialog: seen.said.append(dialog.message))
    page.goto(path.as_uri())
    return seen


def hostile(number: int, at: int, **more: Any) -> bytes:
    """An event whose text tries to become a part of the page."""
    event = {
        "version": "0",
        "id": f"hostile-{number}",
        "detail-type": "</title><script>alert('type')</script>" + "long" * 50,
        "source": "com.example.<b>bold</b>",
        "time": "2026-11-16T09:00:00Z",
        "detail": {**HOSTILE, "call": number % 3, "changed": number, **more},
    }
    line = {"eventonce": 1, "id": f"m{number}", "arrived": at + number, "event": event}
    return json.dumps(line).encode() + b"\n"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of every command, made from traffic with hostile events in it."""
    folder = tmp_path_factory.mktemp("pages")
    lines = [line.text for line in capture(Scenario(events=800, seed=5))]
    at = json.loads(lines[0])["arrived"] - 1_000
    bad = [hostile(number, at) for number in range(12)]
    (folder / "capture.jsonl").write_bytes(b"".join([*bad, *bad, *lines]))
    (folder / "seen.jsonl").write_bytes(b"".join([*bad[:6], *lines[:700]]))
    rule = '[[rule]]\nname = "wide"\nmatch = { source = "com.example.*" }\nkey = ["detail.call"]\n'
    (folder / "wide.toml").write_text(rule)
    wide = ("capture.jsonl", "--rules", "wide.toml")
    commands = {
        "diagnose": ("diagnose", *wide),
        "backtest": ("backtest", *wide, "--recipes"),
        "values": ("backtest", *wide, "--values"),
        "reconcile": ("reconcile", "capture.jsonl", "seen.jsonl"),
        "demo": ("demo",),
    }
    with chdir(folder):
        for name, words in commands.items():
            with pytest.raises(SystemExit) as ended:
                main([*words, "--html", f"{name}.html"])
            assert ended.value.code in (0, 1, None)
    shadow_page(SHADOWED).write(folder / "shadow.html")
    return {name: folder / f"{name}.html" for name in (*commands, "shadow")}


def test_a_page_loads_nothing_else_and_fits_a_narrow_and_a_wide_screen(
    browser: Browser, pages: dict[str, Path]
) -> None:
    for name, path in pages.items():
        for width in (360, 1280):
            page, requests, said = opened(browser, path, width)
            assert requests == [path.as_uri()], name
            assert not said, name
            sizes = "[document.documentElement.scrollWidth, innerWidth]"
            folded = page.evaluate(sizes)
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            assert folded == page.evaluate(sizes) == [width, width], name
            page.close()


def test_every_part_of_a_page_is_reached_by_keyboard(
    browser: Browser, pages: dict[str, Path]
) -> None:
    for name in ("diagnose", "demo"):
        page, _, said = opened(browser, pages[name], 1280)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "report"
        folded = page.locator("details:not([open])").count()
        assert folded > 3
        for _ in range(200):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.matches('details:not([open]) > summary')"):
                assert (
                    page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
                )
                page.keyboard.press("Enter")
            if page.evaluate("document.activeElement === document.body"):
                break
        assert page.locator("details:not([open])").count() == 0
        assert not said
        page.close()


SCHEMES: dict[str, Literal["light", "dark"]] = {
    "diagnose": "light",
    "reconcile": "light",
    "demo": "dark",
    "shadow": "dark",
}


@pytest.mark.parametrize("name", SCHEMES)
def test_a_page_has_no_accessibility_violations(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    page, *_ = opened(browser, pages[name], 1280, SCHEMES[name])
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.evaluate(AXE)
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    assert not [(one["id"], one["nodes"][0]["html"][:200]) for one in found]
    page.close()


def test_values_stay_masked_unless_they_are_asked_for(
    browser: Browser, pages: dict[str, Path]
) -> None:
    for name in ("diagnose", "backtest"):
        text = pages[name].read_text(encoding="utf-8")
        assert not [secret for secret in SECRETS if secret in text], name
    page, *_ = opened(browser, pages["values"], 360)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    shown = page.locator("body").inner_text()
    assert all(secret in shown for secret in SECRETS)
    assert "100\u202f000 characters" in shown
    page.close()
