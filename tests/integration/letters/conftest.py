"""An emulator of SQS, queues in it, and the command line in a folder of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import boto3
import pytest

from tests.helpers import Run
from tests.integration.letters.queues import TOML, Made, Make, consumer_of


@pytest.fixture
def make(endpoint: str, request: pytest.FixtureRequest) -> Make:
    client = boto3.client("sqs", endpoint_url=endpoint)

    def make(suffix: str = "", *, create: bool = True, **attributes: str) -> Made:
        name = f"q{abs(hash(request.node.nodeid))}{suffix}"
        made = Made(f"sqs://{name}?endpoint={endpoint}", client, name)
        if create:
            made.create(**attributes)
        return made

    return make


@pytest.fixture
def run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.syspath_prepend(str(tmp_path))
    # The emulator is one server, and answers at once whether a message is left.
    monkeypatch.setattr("eventonce.letters.sources.RECEIVE_WAIT", 0)
    Path("eventonce.toml").write_text(TOML + '[[sink]]\nto = "file:effects.jsonl"\n')
    return partial(run, "letters")


@pytest.fixture
def existing_store(run: Run) -> None:
    """A store that exists already, because the command line creates none."""
    consumer_of("", store="sqlite:///store.db").close()
