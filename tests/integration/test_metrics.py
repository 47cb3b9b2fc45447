"""The metrics of a receiver, which a real Prometheus reads and alerts on, and of a worker."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.helpers import PATIENCE, until, write_lines
from tests.servers import free_port, missing, running
from tests.servers.receiver import receiving

ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"

SETTINGS = """
name = "crm"
store = "sqlite:///crm.db"

[[rule]]
name = "call"
key = ["detail.call"]

[[sink]]
to = "handlers:run"

[serve]
users = { prometheus = "a password of the tests" }
"""

HANDLERS = """
from eventonce import Reject

def run(job):
    if job.event.detail["call"] == 0:
        raise Reject("no such customer")
"""


def events(first: int, number: int) -> list[dict[str, Any]]:
    return [
        {"id": str(at), "detail-type": "call", "detail": {"call": at}}
        for at in range(first, first + number)
    ]


class Prometheus:
    """A Prometheus server, queried over its API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **query: str) -> Any:
        url = f"{self._url}/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return json.load(answer)["data"]

    def value(self, query: str) -> float | None:
        """The value of a query, or None while the query has no result."""
        found = self.ask("query", query=query)["result"]
        return float(found[0]["value"][1]) if found else None


def test_prometheus_reads_the_metrics_of_a_receiver_and_an_alert_fires(tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    if not program:
        missing("Prometheus: apt-get install prometheus")
    (tmp_path / "handlers.py").write_text(HANDLERS)
    user = {"username": "prometheus", "password": "a password of the tests"}
    port = free_port()
    with receiving(tmp_path, SETTINGS) as receiver:
        target = {"targets": [f"127.0.0.1:{receiver.port}"]}
        job = {"job_name": "eventonce", "basic_auth": user, "static_configs": [target]}
        config = {
            "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [job],
        }
        file = tmp_path / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        prometheus = Prometheus(port)
        command = [
            program,
            f"--config.file={file}",
            f"--storage.tsdb.path={tmp_path / 'series'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with running(command, lambda: prometheus.ask("targets")):
            until(lambda: prometheus.value("eventonce_dead_letters_total{status='dead'}") == 0)
            key = {"content-type": "application/json", "authorization": _basic(**user)}
            sent = events(0, 5)
            assert receiver.ask([*sent, sent[1]], headers=key).status == 200
            done = "eventonce_events_total{consumer='crm', status='done', rule='call', type='call'}"
            until(lambda: prometheus.value(done) == 4)
            until(lambda: prometheus.value("eventonce_events_total{cause='same_id'}") == 1)
            until(lambda: prometheus.value("eventonce_store_keys") is not None)
            firing = "ALERTS{alertname='EventonceDeadLetters', alertstate='firing'}"
            until(lambda: prometheus.value(firing) == 1)


def _basic(username: str, password: str) -> str:
    from base64 import b64encode

    return f"Basic {b64encode(f'{username}:{password}'.encode()).decode()}"


def test_the_worker_has_metrics_at_its_health_endpoint_unless_they_are_off(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text(HANDLERS + "    __import__('time').sleep(3600)\n")
    write_lines(tmp_path / "calls.jsonl", *events(1, 1))
    for off, status in (("", 200), ("[worker]\nmetrics = false\n", 404)):
        (tmp_path / "eventonce.toml").write_text(SETTINGS.replace("crm.db", f"{status}.db") + off)
        port = free_port()
        command = [sys.executable, "-m", "eventonce", "run", "--from", "calls.jsonl"]
        with subprocess.Popen(
            [*command, "--health", str(port), "--drain", "0s"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as worker:
            try:
                until(lambda port=port: _read(port)[0])  # type: ignore[misc]
                found, text = _read(port)
                assert found == status
                if status == 200:
                    line = 'eventonce_in_flight{consumer="crm"} 1.0'
                    until(lambda port=port, line=line: line in _read(port)[1])  # type: ignore[misc]
                else:
                    assert "metrics = false" in text
            finally:
                worker.kill()


def _read(port: int) -> tuple[int, str]:
    """The status and the text of /metrics; status 0 while no server answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()
    except OSError:
        return 0, ""
