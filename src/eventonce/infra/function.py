"""The Lambda function that a queue invokes: what both templates say of it."""

from __future__ import annotations

from typing import Any, Final

from eventonce.infra.plan import Plan
from eventonce.infra.resources import VERSION

HANDLER: Final = "function.handler"
RUNTIME: Final = "python3.13"
ARCHITECTURE: Final = "arm64"
MEMORY: Final = 256
"""Megabytes, and with them a share of a CPU: import and a batch take about a quarter of it."""

BATCH: Final = 10
"""Messages of one invocation: the most that Lambda brings without waiting for more."""

LOGS_KEPT: Final = 30
"""Days."""

TRUST: Final[dict[str, Any]] = {
    "Version": VERSION,
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "lambda.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}
"""Who may take the function's role on."""


STORE_MEANS: Final = "The URI of the store, such as rediss://user:password@host:6379/0"
"""What the one who deploys it is asked for, where the store is not the plan's own table: the URI
may hold a password, which no template is the place for."""


def environment(plan: Plan, asked: Any = "") -> dict[str, Any]:
    """What the function is told: `Consumer(os.environ["EVENTONCE_STORE"], name=…)`.

    `asked` stands for what the one who deploys it says of the store, in the template's own words.
    """
    told: dict[str, Any] = {"EVENTONCE_NAME": plan.consumer, "EVENTONCE_STORE": asked}
    if plan.table is not None:
        options = {"key": plan.table.key, "expiry": plan.table.expiry}
        said = "&".join(f"{name}={value}" for name, value in options.items() if value)
        told["EVENTONCE_STORE"] = f"dynamodb://{plan.table.name}" + (f"?{said}" if said else "")
    return told
