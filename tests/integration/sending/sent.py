"""The arguments and the output of `eventonce send`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Sent(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.out)
        return said


Send = Callable[..., Sent]


def event(number: int, **said: Any) -> dict[str, Any]:
    return {
        "version": "0",
        "id": f"id-{number}",
        "source": "com.example",
        "detail-type": "call.ended",
        "time": "2026-11-15T12:00:00Z",
        "resources": ["arn:aws:example:1"],
        "detail": {"number": number, "amount": 10.0},
        **said,
    }
