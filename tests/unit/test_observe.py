"""Observers: one line an outcome, and nothing a sender chose looks like another."""

from __future__ import annotations

import logging

import pytest

from eventonce import Consumer
from eventonce.observe import Tally, to_log

LOG = logging.getLogger("tests.observe")


def test_outcomes_are_counted_and_logged_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally()
    consumer = Consumer("memory:", handler=lambda _: None, observers=[tally, to_log(LOG)])
    event = {"id": "1", "source": "s", "detail-type": "call.end", "detail": {}}
    caplog.set_level("INFO")
    consumer.process([event, event])
    assert tally.counts == {"done": 1, "duplicate": 1}
    first, second = caplog.messages
    assert first.startswith("done type=call.end id=1 ")
    assert second.startswith("duplicate type=call.end id=1 ")


def test_a_senders_line_break_is_written_as_one(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer("memory:", handler=lambda _: None, observers=[to_log(LOG)])
    caplog.set_level("INFO")
    forged = "1\ndone type=call.end id=2"
    consumer.process([{"id": forged, "source": "s", "detail-type": "t\r", "detail": {}}])
    (line,) = caplog.messages
    assert "\n" not in line
    assert "\r" not in line
    assert r"id=1\ndone type=call.end id=2" in line
