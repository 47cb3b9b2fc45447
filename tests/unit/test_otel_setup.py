"""The variables `OTEL_*` switch the export on; an export that fails is logged and stops no work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from eventonce import Consumer
from eventonce.errors import ConfigError
from eventonce.otel import instrument, setup
from tests.helpers import PATIENCE, until


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*setup.SWITCHES, "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", setup.SWITCHES)
def test_each_variable_asks_for_an_export_unless_the_sdk_is_off(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert setup.asked() == ""
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert setup.asked() == name
    monkeypatch.setenv("OTEL_SDK_DISABLED", "TRUE")
    assert setup.asked() == ""


def test_a_consumer_without_these_variables_is_neither_traced_nor_measured() -> None:
    consumer = Consumer("memory:", handler=lambda _: None)
    with setup.exporting(consumer):
        assert consumer.runtime.tracer is None
        assert consumer.runtime.gate.meter is None
        assert consumer.observers == []


def test_without_the_extra_a_warning_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setattr(setup, "find_spec", lambda _: None)
    consumer = Consumer("memory:", handler=lambda _: None)
    assert setup.exported(consumer) is None
    assert "OTEL_TRACES_EXPORTER is set, but nothing is exported" in caplog.text
    assert 'pip install -e ".[otel]"' in caplog.text


def test_instrument_names_the_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "eventonce.otel.metrics", raising=False)
    with pytest.raises(ConfigError, match=r'pip install -e "\.\[otel\]"'):
        instrument(Consumer("memory:", handler=lambda _: None))


def test_an_exporter_is_chosen_by_the_variables_and_an_unknown_protocol_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = setup._exporter("traces")
    assert exporter is not None
    assert exporter.__module__.startswith("opentelemetry.exporter.otlp.proto.http")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert setup._exporter("traces") is None
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "carrier-pigeon")
    assert setup._exporter("metrics") is None, "a variable for everybody stops no work"
    assert "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: no exporter" in caplog.text


REFUSED = """
import logging, threading
from eventonce import Consumer
from eventonce.otel.setup import exporting
logging.basicConfig(format="%(message)s")
ran = []
with Consumer("memory:", handler=ran.append) as consumer, exporting(consumer):
    assert consumer.process([{"id": "1", "source": "s", "detail-type": "t", "detail": {}}])[0].ack
    print(len(ran), consumer.runtime.tracer, [it.name for it in threading.enumerate()])
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_PROPAGATORS", "tracecontext,nobody"), ("OTEL_BSP_MAX_QUEUE_SIZE", "1")],
)
def test_a_variable_that_the_sdk_refuses_stops_no_work(name: str, value: str) -> None:
    """In a process of its own: the SDK reads some variables only once."""
    given = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", name: value}
    ended = subprocess.run(
        [sys.executable, "-c", REFUSED], env=given, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "1 None ['MainThread', 'eventonce-gate']\n", "no thread of the SDK"
    assert "otel: nothing is exported, because the SDK refuses" in ended.stderr


def test_a_consumer_that_is_instrumented_already_keeps_its_tracer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    consumer = Consumer("memory:", handler=lambda _: None)
    instrument(consumer)
    tracer = consumer.runtime.tracer
    assert setup.exported(consumer) is None
    assert consumer.runtime.tracer is tracer


class _Silent:
    """A provider whose collector does not answer until `let_go` is set."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.asked = 0

    def force_flush(self) -> None:
        self.asked += 1
        self.let_go.wait(PATIENCE)

    shutdown = force_flush


def test_a_silent_collector_delays_neither_an_invocation_nor_the_end_of_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(setup, "FLUSH_WAIT", 0.01)
    monkeypatch.setattr(setup, "CLOSE_WAIT", 0.02)
    silent = _Silent()
    export = setup.Export([silent])
    export.flush()
    export.flush()
    export.close()
    assert not silent.let_go.is_set()
    until(lambda: silent.asked == 2)
    silent.let_go.set()
    assert caplog.text.count("did not take everything within 0.01 s") == 1
    assert "did not take everything within 0.02 s" in caplog.text


class _Away:
    def force_flush(self) -> None:
        raise OSError("away")

    shutdown = force_flush


def test_a_failed_export_is_reported_and_raises_no_error(caplog: pytest.LogCaptureFixture) -> None:
    export = setup.Export([_Away()])
    export.flush()
    export.close()
    assert caplog.text.count("not everything could be exported") == 2
