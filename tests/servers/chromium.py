"""A browser without a window: Debian's Chromium, or Chrome where that is installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, expect, sync_playwright

from tests.helpers import PATIENCE
from tests.servers import missing

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
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if not program:
        missing("Chromium: apt-get install chromium")
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=QUIET)
        try:
            yield opened
        finally:
            opened.close()
