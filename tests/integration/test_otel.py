"""Traces and metrics reach a collector over OTLP, and a trace continues to a webhook."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.helpers import PATIENCE, until, write_lines
from tests.servers.http import Handler, served
from tests.servers.otlp import Collected, collecting, said
from tests.servers.receiver import JSON, receiving

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

SETTINGS = """
name = "crm"
store = "memory:"

[[rule]]
name = "call"
key = ["detail.call"]

[[sink]]
to = "http://127.0.0.1:{port}/hook"
"""


def event(call: int) -> dict[str, object]:
    return {"id": f"id-{call}", "detail-type": "call", "detail": {"call": call}}


NEVER = str(10 * PATIENCE * 1000)
"""Milliseconds that no test waits for."""

PATIENT = f"""
import sys
from eventonce.cli import main
from eventonce.otel import setup

setup.CLOSE_WAIT = {PATIENCE}
main(sys.argv[1:])
"""
"""The command line, which waits for a collector however slow the machine is."""


def test_a_trace_goes_from_a_request_through_a_receiver_to_its_webhook(tmp_path: Path) -> None:
    sent_on: list[str] = []

    class Hook(Handler):
        def reply(self) -> None:
            self.body()
            sent_on.append(self.headers["traceparent"])
            self.answer(200)

    with served(Hook) as port, collecting() as collected:
        env = {**collected.environment, "OTEL_SERVICE_NAME": "crm-receiver"}
        with receiving(tmp_path, SETTINGS.format(port=port), env=env) as receiver:
            headers = {**JSON, "traceparent": f"00-{TRACE}-{SPAN}-01"}
            assert receiver.ask(event(1), headers=headers).status == 200
            assert receiver.ask(event(1), headers=headers).status == 200
            # The receiver does not wait long for a collector at its end, and this one may be slow.
            until(lambda: len(collected.spans()) == 3, collected.spans)
            until(lambda: sum(_events(collected).values()) == 2, collected.latest)
            receiver.process.send_signal(signal.SIGTERM)
            code, _ = receiver.ended()
            assert code == 0, receiver.log.read_text()
    first, second = collected.spans("process /events")
    (handler,) = collected.spans("handle call")
    assert {span.trace_id.hex() for span in (first, second, handler)} == {TRACE}
    assert {span.parent_span_id.hex() for span in (first, second)} == {SPAN}
    assert handler.parent_span_id == first.span_id
    assert [link.span_id.hex() for link in first.links] == [SPAN]
    assert said(first)["eventonce.status"] == "done"
    assert said(second)["eventonce.status"] == "duplicate"
    assert sent_on == [f"00-{TRACE}-{handler.span_id.hex()}-01"]
    resource = collected.traces[0].resource_spans[0].resource
    assert {one.key: one.value.string_value for one in resource.attributes}[
        "service.name"
    ] == "crm-receiver"
    assert _events(collected) == {"done": 1, "duplicate": 1}
    metrics = collected.latest()
    assert metrics["eventonce_events"].sum.is_monotonic
    (took,) = metrics["messaging.process.duration"].histogram.data_points
    assert took.count == 1


def _events(collected: Collected) -> dict[str, int]:
    """The number of events, by status."""
    metrics = collected.latest()
    if "eventonce_events" not in metrics:
        return {}
    return {
        one.value.string_value: point.as_int
        for point in metrics["eventonce_events"].sum.data_points
        for one in point.attributes
        if one.key == "status"
    }


def test_a_worker_exports_its_traces_when_it_ends(tmp_path: Path) -> None:
    with collecting() as collected:
        done = backfill(tmp_path, {**collected.environment, "OTEL_BSP_SCHEDULE_DELAY": NEVER})
    assert done.returncode == 0, done.stderr
    assert len(collected.spans("handle call")) == 20
    assert {said(span)["messaging.system"] for span in collected.spans("process")} == {"file"}


def test_a_collector_that_is_away_stops_no_work(tmp_path: Path) -> None:
    done = backfill(
        tmp_path,
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2",
        },
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] == 20


def test_an_exporter_that_is_not_installed_is_named(tmp_path: Path) -> None:
    said = {"OTEL_TRACES_EXPORTER": "zipkin", "OTEL_METRICS_EXPORTER": "none"}
    done = backfill(tmp_path, said)
    assert done.returncode == 0, "a variable for everybody stops no work"
    assert "OTEL_TRACES_EXPORTER: no exporter 'zipkin' of traces" in done.stderr


def backfill(folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`eventonce run` over a capture."""
    capture = folder / "events.jsonl"
    write_lines(capture, *map(event, range(20)))
    rule = '[[rule]]\nname = "call"\nkey = ["detail.call"]\n'
    (folder / "eventonce.toml").write_text(f'store = "memory:"\n{rule}')
    (folder / "noting.py").write_text("def run(job):\n    pass\n")
    words = ["run", "--from", str(capture), "--json", "--handler", "noting:run"]
    return subprocess.run(
        [sys.executable, "-c", PATIENT, *words],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_the_receiver_exports_while_it_runs(tmp_path: Path) -> None:
    with collecting() as collected:
        settings = SETTINGS.format(port=9)
        with receiving(tmp_path, settings, env=collected.environment) as receiver:
            receiver.ask(event(1))
            until(lambda: collected.spans() and "eventonce_in_flight" in collected.latest())


FUNCTION = f"""
import json, os, sys
from eventonce import Consumer
from eventonce.aws import lambda_handler
from eventonce.otel import setup

setup.FLUSH_WAIT = {PATIENCE}
consumer = Consumer("memory:", handler=lambda job: None)
function = lambda_handler(consumer)
for line in sys.stdin:
    print(json.dumps(function(json.loads(line), None)), flush=True)
"""


def test_a_function_exports_at_the_end_of_each_invocation() -> None:
    with (
        collecting() as collected,
        subprocess.Popen(
            [sys.executable, "-c", FUNCTION],
            env={
                **os.environ,
                **collected.environment,
                "OTEL_BSP_SCHEDULE_DELAY": NEVER,
                "OTEL_METRIC_EXPORT_INTERVAL": NEVER,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        for number in (1, 2):
            process.stdin.write(json.dumps(event(number)) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["statusCode"] == 200
            assert len(collected.spans("process")) == number
            assert _events(collected) == {"done": number}
        process.communicate(timeout=PATIENCE)
