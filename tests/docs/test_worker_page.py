"""The page about the worker is true: its code and its commands do what it shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from eventonce.aws.sqs import Entry, Queue
from eventonce.config import WorkerTable
from eventonce.infra.iam import QUEUE_RIGHTS
from tests.docs.pages import DOCS, broken_links, sections
from tests.helpers import PATIENCE
from tests.servers import free_port
from tests.servers.aws import emulated, ministack

PAGE = DOCS / "worker.md"
EVENT = """{"id": "%s", "detail-type": "v2.detail.events.conversation.{id}.user.end",
  "source": "aws.partner/genesys.com/cloud/o-1/calls", "detail": {
  "topicName": "v2.detail.events.conversation.c-1.user.end", "version": "2",
  "timestamp": "2026-05-04T09:15:27.482Z", "metadata": {"CorrelationId": "x"},
  "eventBody": {"eventTime": 1777886127391, "conversationId": "c-1", "participantId": "p-1",
  "sessionId": "s-1", "userId": "u-1"}}}"""


def _block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_two_files_shown_run_each_event_once(tmp_path: Path) -> None:
    with emulated(), ministack() as endpoint:
        queue = Queue.from_uri(f"sqs://crm-sync?region=eu-central-1&endpoint={endpoint}")
        queue.client.create_queue(QueueName=queue.name)
        port = free_port()
        settings = (
            _block("toml")
            .replace("redis://127.0.0.1:6379", "sqlite:///calls.db")
            .replace("?region=eu-central-1", f"?region=eu-central-1&endpoint={endpoint}")
            .replace("health = 8081", f'health = {port}\nwait = "0s"')
        )
        (tmp_path / "eventonce.toml").write_text(settings)
        (tmp_path / "handlers.py").write_text(_block("python"))
        worker = subprocess.Popen(
            [sys.executable, "-m", "eventonce", "run", "--json"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        try:
            for name in ("a", "b"):
                # One after the other: a copy of a running event is busy, and comes a minute later.
                queue.send([Entry(EVENT % name)])
                end = time.monotonic() + PATIENCE
                while any(_counts(queue)) and time.monotonic() < end:
                    time.sleep(0.05)
            worker.send_signal(signal.SIGTERM)
            said, logged = worker.communicate(timeout=PATIENCE)
        finally:
            worker.kill()
            worker.wait()
    assert worker.returncode == 0, logged
    assert said.count("closing c-1 as") == 1
    assert '"done":1' in said
    assert '"duplicate":1' in said


def _counts(queue: Queue) -> list[int]:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    known: Any = queue.client.get_queue_attributes(QueueUrl=queue.url, AttributeNames=names)
    return [int(known["Attributes"][name]) for name in names]


def test_every_setting_is_described_with_its_default() -> None:
    ((*rows,),) = sections("worker.md")["Settings"].tables()
    described = {name.strip("`"): default.strip("`") for name, _, default in rows}
    defaults = {name: str(getattr(WorkerTable(), name)) for name in WorkerTable.__struct_fields__}
    assert described == {**defaults, "queue": "needed", "health": "none", "metrics": "true"}


def test_the_rights_on_the_page_match_the_policy() -> None:
    ((*rows,),) = sections("worker.md")["Rights"].tables()
    assert {row[0].strip("`") for row in rows} == {f"sqs:{action}" for action in QUEUE_RIGHTS}


def test_the_settings_shown_are_toml_and_no_link_is_broken() -> None:
    assert tomllib.loads(_block("toml"))["worker"]["health"] == 8081
    assert not broken_links(PAGE)


def test_the_code_shown_runs() -> None:
    code = sections("worker.md")["A source of your own"].blocks("python")[0]
    scope: dict[str, Any] = {}
    exec(code, scope)
    scope["consumer"].close()
