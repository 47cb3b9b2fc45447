"""A browser without a window: Debian's Chromium, or Chrome where that is installed.

Chromium's headless shell has the same engine without windows, menus and tabs: the tests take half
of the processor time with it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, expect, sync_playwright

from tests.helpers import PATIENCE
from tests.servers import missing

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")

QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
)
"""So that it asks nothing of the network by itself."""


@contextmanager
def browser() -> Iterator[Browser]:
    """The browser, until the block ends; whoever expects something of a page is patient."""
    found = [program for name in PROGRAMS if (program := shutil.which(name))]
    if not found:
        missing(f"Chromium: apt-get install {PROGRAMS[0]}")
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found[0], args=QUIET)
        try:
            yield opened
        finally:
            opened.close()
