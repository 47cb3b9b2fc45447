"""The log of `run` and `serve`: lines for people on a terminal, JSON for everything else."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

import click
import msgspec

from eventonce.cli.output import CLEAR_LINE, on_terminal
from eventonce.log import on_one_line

LINE_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"

log_format_option = click.option(
    "--log-format",
    type=click.Choice(["auto", "text", "json"]),
    default="auto",
    help="The form of the log: auto is text on a terminal, and JSON elsewhere.",
)


class TextFormatter(logging.Formatter):
    """The format for people: a line for each record, with the lines of a traceback indented below.
    The text of an error may come from a sender: it must neither look like a log line of its own
    nor control the terminal."""

    def __init__(self) -> None:
        super().__init__(LINE_FORMAT)

    def formatException(self, ei: Any) -> str:  # noqa: N802  the name of `logging`
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"  {on_one_line(line)}" for line in lines)


class JSONFormatter(logging.Formatter):
    """The JSON format: a line for each record, with the fields of an outcome if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        fields = getattr(record, "fields", None)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            # `fields` may have a shorter message. Other libraries may use the name differently.
            **(fields if isinstance(fields, dict) else {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except UnicodeEncodeError:
            # A lone surrogate, for example in the error text of a handler.
            return json.dumps(line, default=str)


class OverBar(logging.StreamHandler[Any]):
    """The handler of a terminal with a progress bar, whose line is cleared before each record."""

    def format(self, record: logging.LogRecord) -> str:
        return CLEAR_LINE + super().format(record)


def log_to_stderr(form: str, *, bar: bool = False) -> None:
    """Log to stderr, unless a module of the user has configured logging before. `bar`: whether
    stderr shows a progress bar, if it is a terminal."""
    terminal = on_terminal(sys.stderr)
    handler = (OverBar if bar and terminal else logging.StreamHandler)(sys.stderr)
    as_json = form == "json" or (form == "auto" and not terminal)
    handler.setFormatter(JSONFormatter() if as_json else TextFormatter())
    logging.basicConfig(handlers=[handler])
    logging.getLogger("eventonce").setLevel(logging.INFO)
