"""A consumer after a fork: both processes go on, although the child has none of the threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FORKING = """
import asyncio, os, signal, sys, threading, time
from eventonce import Consumer, Rule
from eventonce.runtime.shared_process import THIS_PROCESS

signal.alarm(240)
LEASE = float(sys.argv[1])
STOLEN = 7
rule = Rule(name="call", match="call", key=["detail.call"], lease=LEASE)
begun, forked = threading.Event(), threading.Event()

def event(kind, number):
    return {"id": f"{kind}-{number}", "detail-type": kind, "detail": {"call": number}}

def last(job):
    begun.set()
    forked.wait()
    end = time.monotonic() + 3 * LEASE
    while time.monotonic() < end:
        if rival.process(job.event)[0].status != "busy":
            os._exit(STOLEN)
        time.sleep(LEASE / 10)

async def quick(job):
    pass

consumer = Consumer("memory:", rules=rule)
consumer.on("call")(last)
consumer.on("other")(quick)
consumer.on("third")(lambda job: None)
rival = Consumer(consumer.store, rules=rule, handler=lambda job: None)

def work(number):
    for kind in ("call", "other"):
        (outcome,) = consumer.process(event(kind, number))
        assert outcome.status == "done", outcome
    (outcome,) = asyncio.run(consumer.process_async(event("third", number)))
    assert outcome.status == "done", outcome

consumer.process(event("other", 0))
asyncio.run(consumer.process_async(event("third", 0)))
failed = []
parent = threading.Thread(target=work, args=(1,))
threading.excepthook = failed.append
parent.start()
begun.wait()
child = os.fork()
forked.set()
if child == 0:
    signal.alarm(240)
    status = 1
    try:
        assert not THIS_PROCESS._entered, "runs of the parent would keep others from being alone"
        {child}
        status = 0
    finally:
        os._exit(status)
parent.join()
ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(1 if failed else ended)
"""
STOLEN = 7

LEASES = ("0.3", "3", "15")
"""Seconds. The first lease is enough, unless this machine is too slow to renew it in time: then a
longer lease is tried. A lease that is not renewed ends under each of them."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("child", ["consumer.close()", "work(2); consumer.close()"])
def test_a_consumer_goes_on_in_both_processes_after_a_fork(child: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING.replace("{child}", child)]
    for lease in LEASES:
        ran = subprocess.run([*command, lease], capture_output=True, timeout=300, check=False)
        if ran.returncode != STOLEN:
            break
    assert ran.returncode == 0, ran.stderr.decode()


LOCKED = """
import os, signal, sys, threading
from eventonce import Consumer
from eventonce.runtime.observers import Tally, to_log

signal.alarm(240)
tally, to_our_log = Tally(), to_log(every=False)
consumer = Consumer("memory:", observers=[tally, to_our_log])
consumer.on("call")(lambda job: None)
call = {"id": "1", "detail-type": "call", "detail": {}}
one = {locked}
held, forked = threading.Event(), threading.Event()

def hold():
    with one._lock:
        held.set()
        forked.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
forked.set()
if child == 0:
    signal.alarm(240)
    status = 1
    try:
        outcomes = consumer.process([call, {**call, "detail-type": "other"}])
        outcomes += consumer.process([call])
        assert [one.status for one in outcomes] == ["done", "ignored", "duplicate"], outcomes
        assert tally.counts.total() == 3
        status = 0
    finally:
        os._exit(status)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize(
    "locked", ["tally", "to_our_log._sampled", "consumer.store", "consumer.runtime.unhandled"]
)
def test_a_lock_that_another_thread_holds_at_a_fork_stops_no_event_of_the_child(
    locked: str,
) -> None:
    script = LOCKED.replace("{locked}", locked)
    command = [sys.executable, "-W", "ignore", "-c", script]
    ran = subprocess.run(command, capture_output=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
