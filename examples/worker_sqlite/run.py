"""The whole example in one command, without an AWS account: `python examples/worker_sqlite/run.py`.

EventBridge and SQS are ministack's; the worker and its store are as they would be anywhere.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

from needed import needed  # noqa: E402  found by the line above

INSTALL = '".[dynamodb,sqs]" ministack aws-sam-translator'
needed("boto3", "ministack", "samtranslator", install=INSTALL)

import boto3  # noqa: E402  known to be there by now
from emulator import drained, emulated_aws, eventonce  # noqa: E402  as the one above

COPIES = 3


def main() -> None:
    """Make the queue, start the worker, send every call three times, and count."""
    with tempfile.TemporaryDirectory() as folder, emulated_aws():
        shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
        os.chdir(folder)
        eventonce("infra", "apply")
        with _working():
            eventonce(
                *("send", "calls.jsonl", "--bus", "calls"),
                *("--copies", str(COPIES), "--every", "0.5"),
            )
            sqs = boto3.client("sqs")
            drained(sqs, sqs.get_queue_url(QueueName="crm-sync")["QueueUrl"])
        print("\nclosed calls")
        with closing(sqlite3.connect("eventonce.db")) as database:
            for call, agent in database.execute("SELECT call, agent FROM closed ORDER BY agent"):
                print(f"  {call}  {agent}")


@contextmanager
def _working() -> Iterator[None]:
    """The worker, until the block is left; it ends what it has begun."""
    print("$ eventonce run &", flush=True)
    worker = subprocess.Popen([sys.executable, "-m", "eventonce", "run"])
    try:
        yield
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()


main()
