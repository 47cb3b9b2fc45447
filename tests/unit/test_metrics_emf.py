"""CloudWatch's embedded metric format: one line for each invocation, as the specification says."""

from __future__ import annotations

import json
import sys
from typing import Any

import jsonschema
import pytest

from eventonce import Consumer, Job
from eventonce.aws import lambda_handler
from eventonce.aws.handler import NotSettled
from eventonce.core.status import MEANINGS
from eventonce.metrics import emf, names
from tests.helpers import ruled
from tests.unit.invoked import Crm, event, record

NAME = {"type": "string", "minLength": 1, "maxLength": 1024}
UNITS = [
    *("Seconds", "Microseconds", "Milliseconds", "Bytes", "Kilobytes", "Megabytes", "Gigabytes"),
    *("Terabytes", "Bits", "Kilobits", "Megabits", "Gigabits", "Terabits", "Percent", "Count"),
    *("Bytes/Second", "Kilobytes/Second", "Megabytes/Second", "Gigabytes/Second"),
    *("Terabytes/Second", "Bits/Second", "Kilobits/Second", "Megabits/Second"),
    *("Gigabits/Second", "Terabits/Second", "Count/Second", "None"),
]
SCHEMA = {
    "type": "object",
    "required": ["_aws"],
    "properties": {
        "_aws": {
            "type": "object",
            "required": ["Timestamp", "CloudWatchMetrics"],
            "properties": {
                "Timestamp": {"type": "integer", "minimum": 0},
                "CloudWatchMetrics": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["Namespace", "Dimensions", "Metrics"],
                        "properties": {
                            "Namespace": {**NAME, "not": {"pattern": "^AWS/"}},
                            "Dimensions": {
                                "type": "array",
                                "minItems": 1,
                                "items": {
                                    "type": "array",
                                    "minItems": 1,
                                    "maxItems": 30,
                                    "items": {"type": "string", "minLength": 1, "maxLength": 250},
                                },
                            },
                            "Metrics": {
                                "type": "array",
                                "minItems": 1,
                                "maxItems": 100,
                                "items": {
                                    "type": "object",
                                    "required": ["Name"],
                                    "properties": {
                                        "Name": NAME,
                                        "Unit": {"enum": UNITS},
                                        "StorageResolution": {"enum": [1, 60]},
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}
"""The embedded metric format, as its specification describes it."""

NUMBERS = {
    "anyOf": [
        {"type": "number"},
        {"type": "array", "minItems": 1, "maxItems": 100, "items": {"type": "number"}},
    ]
}


def checked(line: str) -> dict[str, Any]:
    """The document of a line that CloudWatch accepts, in which each name leads to its value."""
    document: dict[str, Any] = json.loads(line)
    jsonschema.validate(document, SCHEMA)
    for directive in document["_aws"]["CloudWatchMetrics"]:
        for dimension in [one for several in directive["Dimensions"] for one in several]:
            value = document[dimension]
            assert value.isascii()
            assert value.strip()
            assert len(value) <= 1024
        for metric in directive["Metrics"]:
            jsonschema.validate(document[metric["Name"]], NUMBERS)
    assert len(line) < 256_000
    return document


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [checked(line) for line in capsys.readouterr().out.splitlines()]


def test_an_invocation_ends_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    crm = Crm(metrics=True)
    crm.failing = {"c"}
    crm.handler({"Records": [record("a"), record("b"), record("a"), record("c")]}, None)
    (line,) = printed(capsys)
    assert line["consumer"] == "default"
    assert line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["consumer"]]
    assert (line["events_done"], line["events_duplicate"], line["events_failed"]) == (2, 1, 1)
    assert line["settlements_kept"] == 3
    assert len(line["handler_seconds"]) == 3
    assert len(line["store_claim_seconds"]) >= 1
    assert {"status": "done", "cause": "first_attempt", "rule": "call", "type": "call"} in [
        {name: value for name, value in one.items() if name != "count"} for one in line["outcomes"]
    ]
    crm.handler({"Records": [record("a")]}, None)
    (line,) = printed(capsys)
    assert line["events_duplicate"] == 1, "each line has what is new"
    assert "events_done" not in line


def test_an_invocation_that_raises_also_ends_with_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    crm = Crm(metrics=True)
    crm.failing = {"a"}
    with pytest.raises(NotSettled):
        crm.handler(event("a"), None)
    (line,) = printed(capsys)
    assert line["events_failed"] == 1


def test_a_failed_event_is_still_logged_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    crm = Crm(metrics=True)
    crm.failing = {"a"}
    crm.handler({"Records": [record("a")]}, None)
    assert [one.message for one in caplog.records if one.message.startswith("failed ")]


@pytest.mark.parametrize(
    ("variable", "said", "lines"),
    [("emf", None, 1), ("", None, 0), ("log", None, 0), ("emf", False, 0), ("", True, 1)],
)
def test_the_argument_or_else_the_variable_turns_the_line_on(
    variable: str,
    said: bool | None,
    lines: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EVENTONCE_METRICS", variable)
    crm = Crm(metrics=said)
    crm.handler({"Records": [record("a")]}, None)
    assert len(printed(capsys)) == lines
    assert len(crm.consumer.observers) == lines


def test_an_invocation_without_events_prints_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    Crm(metrics=True).handler({"Records": []}, None)
    assert printed(capsys) == []


def test_an_error_while_the_line_is_made_fails_no_invocation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("a defect")

    crm = Crm(metrics=True)
    monkeypatch.setattr(emf, "line_of", broken)
    assert crm.handler({"Records": [record("a")]}, None) == {"batchItemFailures": []}
    assert "the metrics of an invocation are not printed" in caplog.text


def test_a_line_of_many_events_stays_within_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(job: Job) -> None:
        raise type(f"E{job.event.detail['call']}", (Exception,), {})

    consumer = Consumer("memory:", name="städte " * 200, rules=ruled(match="*"), handler=fail)
    handler = lambda_handler(consumer, metrics=True)
    body = [
        {"id": str(at), "detail-type": "t" * 300 + str(at), "detail": {"call": at}}
        for at in range(900)
    ]
    handler(
        {"Records": [record(str(at), body=json.dumps(one)) for at, one in enumerate(body)]}, None
    )
    (line,) = printed(capsys)
    assert line["events_failed"] == 900
    assert len(line["handler_seconds"]) == emf.MOST_VALUES
    assert len(line["outcomes"]) == emf.MOST_OUTCOMES


def test_too_many_values_are_thinned_with_their_percentiles_kept() -> None:
    values = [float(at) for at in range(10_000)]
    thin = emf.thinned(values)
    assert len(thin) == emf.MOST_VALUES
    assert (thin[0], thin[-1]) == (0, 9_999)
    assert all(abs(thin[at] - 10_000 * at / 99) <= 200 for at in range(emf.MOST_VALUES))
    assert emf.thinned([3.0, 1.23456789]) == [3.0, 1.23457]


def test_the_names_fit_into_one_directive() -> None:
    found: set[str] = set()
    known: dict[str, Any] = {"status": MEANINGS, "call": ["claim", "settle"]}
    known["result"] = ["kept", "fenced", "unknown"]
    for metric in names.METRICS:
        for label in (one for one in metric.labels if f"{{{one}}}" in metric.emf):
            found |= {metric.emf.format(**{label: value}) for value in known[label]}
        if metric.emf and "{" not in metric.emf:
            found.add(metric.emf)
    assert len(found) < 100


def test_a_handler_without_metrics_does_not_import_the_metrics() -> None:
    import subprocess

    code = (
        "import sys; from eventonce import Consumer; from eventonce.aws import lambda_handler; "
        "lambda_handler(Consumer('memory:', handler=print)); "
        "sys.exit(any(name.startswith('eventonce.metrics') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
