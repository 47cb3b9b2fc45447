"""Secrets in URIs: every opener of a URI gets misspelt URIs, and no error repeats a secret."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventonce import Consumer
from eventonce.aws import sqs as address
from eventonce.aws.dlq import QueueLetterSink
from eventonce.cli import main
from eventonce.config import Config, HistoryTable, load
from eventonce.config.checks import check
from eventonce.core.masking import masked, may_hold_secret, scheme_of
from eventonce.errors import EventonceError
from eventonce.infra import targets
from eventonce.sending import ReceiverClient
from eventonce.sinks import EventBus, JSONLines, Sink, SQSQueue, Table, Webhook, open_sink
from eventonce.stores import ADAPTERS, check_uri
from eventonce.stores.memory import MemoryStore

MARKER = "s3cretmarker"
SCHEMES = (*ADAPTERS, "https", "http", "sqs", "events", "table", "file")
SLIPS = ("{0}://", "{0}//", "{0}:/", "{0}:", "{0}x://", " {0}://", "{0}", "")
SHAPES = (
    f"u:{MARKER}@h/db",
    f"u:{MARKER}@[::1",
    f"u:{MARKER}@[::1]:x/db",
    f"u:a/{MARKER}@h/db",
    f"u:a?{MARKER}@h/db",
    f"u:a#{MARKER}@h/db",
    f"u:a@{MARKER}@h/db",
    f"u:a@[{MARKER}@h/db",
    f"u:a@h/hooks/b@{MARKER}",
    f":{MARKER}@h",
    f"{MARKER}@h",
    f"{MARKER}:/b@h/db",
    f"u:{MARKER}",
    f"u:{MARKER}/db",
    f"[h/hooks/{MARKER}",
    f"h:x/hooks?key={MARKER}",
)
FUNCTION = re.compile(r"[a-z+]*:\w+")
WRITTEN = [
    slip.format(scheme) + shape
    for scheme, slip, shape in itertools.product(SCHEMES, SLIPS, SHAPES)
    # A function of a module and the name of a file look the same.
    if not FUNCTION.fullmatch(slip.format(scheme) + shape)
]

OPENERS: dict[str, Callable[[str], object]] = {
    "check_uri": check_uri,
    "sqs": address.parse,
    "letters": lambda uri: QueueLetterSink(uri, MemoryStore()),
    "sink": lambda uri: open_sink(Sink(uri)),
    "Webhook": Webhook,
    "SQSQueue": SQSQueue,
    "EventBus": EventBus,
    "Table": Table,
    "JSONLines": JSONLines,
    "bus": targets.bus,
    "queue": targets.queue,
    "ReceiverClient": lambda uri: ReceiverClient(uri, {}),
}


def said(error: BaseException | None) -> Iterator[str]:
    """The texts that a traceback of this error would print."""
    while error is not None:
        yield f"{error} {error!r}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize("name", OPENERS)
def test_no_opener_of_a_uri_repeats_its_secret(
    name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    told = []
    for uri in WRITTEN:
        try:
            OPENERS[name](uri)
        except EventonceError as error:
            told += [(uri, text) for text in said(error) if MARKER in text]
    assert told == []
    assert MARKER not in caplog.text


@pytest.mark.parametrize("uri", ["redis://u:{0}@[::1", "postgres//u:{0}@h/db", "[{0}@h", "u:{0}@h"])
@pytest.mark.parametrize(
    "typed",
    [
        ["stats", "--store"],
        ["show", "0" * 32, "--store"],
        ["sweep", "--store"],
        ["letters", "list", "--store"],
        ["letters", "list", "--from"],
        ["store", "check"],
        ["store", "create"],
        ["filter", "events.jsonl", "--store"],
        ["run", "--handler", "json:loads", "--queue"],
        ["serve", "--handler", "json:loads", "--store"],
        ["serve", "--handler"],
        ["send", "events.jsonl", "--url"],
        ["send", "events.jsonl", "--queue"],
    ],
)
def test_no_command_repeats_the_secret_of_a_uri_and_none_ends_in_a_traceback(
    typed: list[str],
    uri: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("events.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main([*typed, uri.format(MARKER)])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert MARKER not in told.out + told.err


@pytest.mark.parametrize("uri", ["redis://u:{0}@[::1", "postgres//u:{0}@h/db", "[{0}@h", "u:{0}@h"])
@pytest.mark.parametrize(
    "text",
    [
        *("store = '{0}'", "letters = '{0}'", "[worker]\nqueue = '{0}'", "[[sink]]\nto = '{0}'"),
        "[history]\nstore = '{0}'",
    ],
)
def test_no_error_about_a_file_repeats_the_secret_of_a_uri(
    text: str, uri: str, tmp_path: Path
) -> None:
    file = tmp_path / "eventonce.toml"
    file.write_text(text.format(uri.format(MARKER)), encoding="utf-8")
    with pytest.raises(EventonceError) as refused:
        check(file, name="n")
    assert MARKER not in "".join(said(refused.value))
    assert MARKER not in repr(load(file).sink)


def test_the_settings_of_a_file_are_shown_without_their_secrets() -> None:
    uri = f"postgresql://me:{MARKER}@db.example/crm"
    config = Config(store=uri, secrets=[MARKER], history=HistoryTable(store=uri))
    assert MARKER not in repr(config)
    assert MARKER not in repr(config.history)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgres//u:p@h/db", "postgres//…"),
        ("htps://user:pw@h:8080/x", "htps://…"),
        ("redis://u:p@[::1", "redis://…"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379…"),
        ("https://hooks.example.com/services/T0", "https://hooks.example.com…"),
        ("https:/hooks.example.com/services/T0", "https:/hooks.example.com…"),
        ("token:x@h", "…"),
        ("redis://u:p", "redis://u…"),
        ("sqlite:///a/b.db?wait=1", "sqlite:///a/b.db…"),
        ("file:/var/log/events.jsonl", "file:/var/log/events.jsonl"),
        ("handlers.calls:close_call", "handlers.calls:close_call"),
        ("calls.db", "calls.db"),
        ("", ""),
    ],
)
def test_a_masked_uri_shows_only_its_scheme_and_its_host_or_file(uri: str, shown: str) -> None:
    assert masked(uri) == shown


@pytest.mark.parametrize(
    ("uri", "scheme"), [("redis//h", "redis"), ("token:/x@h", ""), ("token:x@h", "")]
)
def test_a_user_or_a_password_is_not_taken_for_a_scheme(uri: str, scheme: str) -> None:
    assert scheme_of(uri) == scheme


def test_the_error_for_a_wrong_store_does_not_show_its_value() -> None:
    with pytest.raises(EventonceError) as refused:
        Consumer({"password": MARKER})  # type: ignore[arg-type]
    assert MARKER not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "may"),
    [
        ("redis://h:6379/0", False),
        ("postgresql://app@h:5432/db?sslmode=require", False),
        ("sqlite:///a folder/keys.db", False),
        ("dynamodb://table?endpoint=http://localhost:8000", False),
        ("redis://:s3cret@h", True),
        ("redis://u:a/s3cret@h", True),
        ("postgresql://h/db?user=app&passw%6Frd=s3cret", True),
        ("postgresql://h/db?sslPassword=s3cret", True),
        ("redis:u:s3cret@h", True),
    ],
)
def test_a_uri_that_may_hold_a_secret_is_known(uri: str, may: bool) -> None:
    assert may_hold_secret(uri) is may
