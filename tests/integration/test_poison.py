"""An event that kills its process, beside innocent events: real processes, really killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from eventonce import Consumer

INNOCENT: Final = 6
LEASE: Final = 1.1
"""Seconds, and a little more, for which a killed process holds its events."""
ROUNDS: Final = 40
"""Processes that may start until all events are settled; three are killed if all goes well."""

PROGRAM: Final = """
import json, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from eventonce import Consumer, Rule

path, count = sys.argv[1], int(sys.argv[2])
rule = Rule(name="call", match="call", key=["detail.call"], lease=1, attempts=2)
beside = threading.Barrier(count + 1)

def handle(job):
    try:
        beside.wait(0.2)   # all run side by side, where they may
    except threading.BrokenBarrierError:
        pass
    if job.event.detail["call"] == "poison":
        os.kill(os.getpid(), signal.SIGKILL)

consumer = Consumer(f"sqlite:///{path}", rules=rule, handler=handle)
calls = ["poison", *range(count)]
events = [{"id": str(it), "detail-type": "call", "detail": {"call": it}} for it in calls]
with ThreadPoolExecutor(len(events)) as threads:
    outcomes = list(threads.map(lambda event: consumer.process([event])[0], events))
print(json.dumps([outcome.status for outcome in outcomes]))
"""


def test_an_event_that_kills_its_process_is_given_up_and_the_events_beside_it_are_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "calls.db"
    killed = 0
    for _ in range(ROUNDS):
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path), str(INNOCENT)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        killed += ran.returncode != 0
        if ran.returncode == 0:
            statuses = json.loads(ran.stdout)
            if "busy" not in statuses:
                break
        time.sleep(LEASE)
    assert statuses[0] == "dead"
    assert set(statuses[1:]) <= {"done", "duplicate"}
    assert killed >= 3, "once beside the others, and then its two attempts alone"
    with Consumer(f"sqlite:///{path}", handler=lambda _: None) as consumer:
        assert [json.loads(letter.event)["id"] for letter in consumer.letters()] == ["poison"]
