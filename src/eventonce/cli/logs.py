"""The log of `run` and `serve`: lines for people on a terminal, JSON for everything else."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Final

import click
import msgspec

TEXT: Final = "%(asctime)s %(levelname)s %(message)s"

log_format_option = click.option(
    "--log-format",
    type=click.Choice(["auto", "text", "json"]),
    default="auto",
    show_default=True,
    help="The form of the log: auto is text on a terminal, and JSON elsewhere.",
)


class JsonFormatter(logging.Formatter):
    """A line of JSON for each record, with the fields of an outcome where it is about one."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def log_to_stderr(form: str) -> None:
    """Log there, unless a module of the user's has configured logging before."""
    handler = logging.StreamHandler(sys.stderr)
    json = form == "json" or (form == "auto" and not sys.stderr.isatty())
    handler.setFormatter(JsonFormatter() if json else logging.Formatter(TEXT))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("eventonce").setLevel(logging.INFO)
