"""`eventonce send` as it is typed, in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eventonce.cli import main
from tests.integration.sending.sent import Send, Sent


@pytest.fixture
def send(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Send:
    monkeypatch.chdir(tmp_path)

    def send(*args: str, events: Any = None) -> Sent:
        if events is not None:
            Path("events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in events))
        with pytest.raises(SystemExit) as stop:
            main(["send", "events.jsonl", "--every", "0", *args])
        out, err = capsys.readouterr()
        return Sent(int(stop.value.code or 0), out, err)

    return send
