"""A capture through the same rules, store and sinks, by `eventonce run --from`."""

from __future__ import annotations

import gzip
import json
import signal
from pathlib import Path

import pytest

from tests.integration.worker.conftest import Site, event, finished


@pytest.fixture
def captured(site: Site) -> Path:
    """A folder with forty events in all the forms a capture can have, ten of them twice."""
    folder = site.folder / "captured"
    folder.mkdir()
    events = [event(number) for number in range(40)]
    (folder / "1.jsonl").write_text("\n".join(events[:20]))
    (folder / "2.jsonl.gz").write_bytes(gzip.compress("\n".join(events[10:30]).encode()))
    (folder / "3.json").write_text(f"[{', '.join(events[30:39])}]")
    (folder / "4.json").write_text(json.dumps(json.loads(events[39]), indent=2))
    return folder


def _summary(said: str) -> dict[str, int]:
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    summary: dict[str, int] = json.loads(line)
    return summary


def test_the_events_of_a_capture_run_once_in_two_backfills(site: Site, captured: Path) -> None:
    # One after the other: a copy that comes while its event runs waits for the end of the lease,
    # and a lease that is short enough for that could end while its event still runs.
    site.configure("plain", queue="", lease="60s", concurrency=1)
    code, said = finished(site.start("--from", str(captured), "--json"))
    assert code == 0, said
    assert _summary(said) == {"done": 40, "duplicate": 10, "unfinished": 0}
    site.configure("plain", queue="", lease="60s")
    code, said = finished(site.start("--from", str(captured), "--rate", "1000"))
    assert code == 0, said
    assert "50 deliveries, 0 done" in said
    assert sorted(site.notes()) == sorted(f"ran {number}" for number in range(40))


def test_a_backfill_that_was_killed_continues_where_it_ended(site: Site, captured: Path) -> None:
    # One event at a time, as for async handlers, and each settled before the next: the process is
    # killed with one event between its effect and its completion.
    site.configure("stuck", queue="", lease="1s", concurrency=1)
    killed = site.start("--from", str(captured), "--rate", "1000")
    site.noted("ran 6")
    killed.send_signal(signal.SIGKILL)
    finished(killed)
    assert site.notes() == [f"ran {number}" for number in range(7)]
    site.go()
    code, said = finished(site.start("--from", str(captured), "--json"))
    assert code == 0, said
    # That event has two effects, and no other event has.
    assert sorted(site.notes()) == sorted([*(f"ran {number}" for number in range(40)), "ran 6"])
    assert _summary(said)["done"] == 34


def test_a_failing_event_is_retried_and_an_event_that_cannot_succeed_fails_the_command(
    site: Site,
) -> None:
    site.configure("hopeless", queue="", attempts=2)
    capture = site.folder / "capture.jsonl"
    capture.write_text("\n".join([event(1), event("bad"), "no event", event(2)]))
    code, said = finished(site.start("--from", str(capture), "--json"))
    assert code == 1, said
    assert _summary(said) == {"done": 2, "dead": 1, "failed": 1, "invalid": 1, "unfinished": 0}
    assert sorted(letter.status for letter in site.letters()) == ["dead", "invalid"]
    assert sorted(site.notes()) == ["ran 1", "ran 2"]


def test_an_event_that_no_sink_takes_fails_and_does_not_hold_up_the_end(site: Site) -> None:
    site.configure("plain", queue="")
    file = site.folder / "eventonce.toml"
    file.write_text(
        'unhandled = "fail"\n'
        + file.read_text().replace('to = "noting:plain"', 'to = "noting:plain"\nmatch = "other"')
    )
    capture = site.folder / "capture.jsonl"
    capture.write_text("\n".join([event(1), event(2), event(3).replace('"number"', '"other"')]))
    code, said = finished(site.start("--from", str(capture), "--json"))
    assert code == 1, said
    assert _summary(said) == {"done": 1, "failed": 2, "unfinished": 0}
    assert "2 events failed, because no handler or sink takes the type" in said


@pytest.mark.parametrize(
    ("change", "arguments", "code", "said"),
    [
        ("", ("--rate", "5"), 2, "--rate needs --from"),
        ('queue = "', (), 2, "no queue is given"),
        ("[[sink]]", (), 2, "write a [[sink]] table"),
        ("", ("--concurrency", "0"), 2, "worker.concurrency: expected"),
        ("", ("--drain", "soon"), 2, "drain: expected a duration"),
        ("", ("--health", "here"), 2, "health: expected HOST:PORT"),
        ("", ("--queue", "sqs://user:pw@queue"), 2, "Credentials do not belong"),
        ("", ("--from", "eventonce.toml", "--store", "redis://127.0.0.1:1"), 3, "127.0.0.1:1"),
    ],
)
def test_a_wrong_setting_or_an_unreachable_store_ends_the_command_with_an_error(
    site: Site,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    from eventonce.cli import main

    site.configure("plain")
    file = site.folder / "eventonce.toml"
    lines = file.read_text().splitlines()
    if change == "[[sink]]":
        lines = [line for line in lines if "sink" not in line and "noting" not in line]
    elif change:
        lines = [line for line in lines if change not in line]
    file.write_text("\n".join(lines))
    monkeypatch.chdir(site.folder)
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments])
    told = capsys.readouterr().err
    assert ended.value.code == code, told
    assert said in told
    assert "pw@" not in told
