"""A worker joins the trace that a message of its queue carries."""

from __future__ import annotations

import signal

import pytest

from eventonce.aws.sqs import Entry
from tests.helpers import until
from tests.integration.worker.conftest import Site, event, finished
from tests.servers.otlp import collecting

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_message_attribute_brings_the_trace_to_the_handler(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So long that no message comes a second time because the machine is busy.
    site.configure("plain", visibility="60s", lease="60s")
    parent = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    assert not site.queue.send([Entry(event(1), attributes=parent), Entry(event(2))])
    with collecting() as collected:
        for name, value in collected.environment.items():
            monkeypatch.setenv(name, value)
        worker = site.start()
        until(lambda: len(collected.spans()) == 4, collected.spans)
        worker.send_signal(signal.SIGTERM)
        code, said = finished(worker)
    assert code == 0, said
    assert len(collected.spans("handle numbers")) == 2
    batches = collected.spans(f"process {site.queue.name}")
    joined = [span for span in batches if span.trace_id.hex() == TRACE]
    assert len(batches) == 2
    assert [span.parent_span_id.hex() for span in joined] == [SPAN]
    assert [link.span_id.hex() for span in batches for link in span.links] == [SPAN]
