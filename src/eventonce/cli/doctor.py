"""`eventonce doctor`: check a whole set-up, and name each fault with its remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

import click
import msgspec

from eventonce.aws.sessions import Access
from eventonce.aws.sqs import SCHEMES, Address, parse
from eventonce.cli import FAILED
from eventonce.cli.config import patterns_option, unknown_patterns, unread_patterns
from eventonce.cli.history_options import history_of
from eventonce.cli.infra import placed_topology
from eventonce.cli.options import (
    Settings,
    endpoint_option,
    json_option,
    region_option,
    with_settings,
)
from eventonce.cli.output import counted, emit, finding_text
from eventonce.config import DEFAULT_FILE, DEFAULT_NAME, DEFAULT_STORE, Config, read
from eventonce.config.checks import check_values
from eventonce.config.references import files_in
from eventonce.core.masking import masked, scheme_of
from eventonce.core.ports import Finding
from eventonce.doctor.checks import findings
from eventonce.doctor.facts import Facts, FileFacts, HistoryFacts
from eventonce.doctor.look import Subject, look
from eventonce.doctor.storage import history_facts, key_file_findings, key_findings, store_findings
from eventonce.infra.topology import Infra
from eventonce.rules.instants import duration
from eventonce.runtime.retention import kept_for


@click.command()
@click.option("--queue", metavar="URI", help="The queue, a name too.  [default: the file's]")
@click.option(
    "--function",
    "functions",
    metavar="NAME",
    multiple=True,
    help="A function that runs the consumer, beside those that receive from the queue; repeat the "
    "option for several.",
)
@click.option(
    "--bus",
    "buses",
    metavar="NAME",
    multiple=True,
    help="A bus whose rules are looked at; repeat the option for several.  [default: all buses]",
)
@region_option
@endpoint_option
@patterns_option
@with_settings("store", "presets", "rules", "name", "config")
@json_option
def doctor(settings: Settings, *, handler: str | None, **options: Any) -> int:
    """Check store, history, queue, buses, functions, rights and rules, and name each fault with its
    remedy.

    Nothing is changed: the store alone gets a record, which is deleted at once. A thing that cannot
    be looked at is "not checked", and never "ok".
    """
    file = settings.file
    check_values(file, "worker", "privacy")
    on_sqs, skipped = _on_sqs(file)
    subject = _subject(on_sqs, **options)
    facts = look(subject) if subject is not None else NO_SUBJECT
    if subject is not None and not (subject.queue or subject.functions):
        # A store on AWS, or a bus, does not say how events arrive.
        facts = msgspec.structs.replace(facts, unseen=(*facts.unseen, *NO_SUBJECT.unseen))
    store = file.store or DEFAULT_STORE
    keep = kept_for("keep_letters", file.keep_letters)
    keys = file.privacy.sealing_keys
    stored = store_findings(store, file.name or DEFAULT_NAME, keep, keys)
    stored += key_findings(keys)
    stored += key_file_findings(_key_files(settings.path or DEFAULT_FILE) if keys else ())
    facts = msgspec.structs.replace(
        facts,
        unseen=(*facts.unseen, *skipped, *(("store", it) for it in stored)),
        history=_history(file),
    )
    said = FileFacts(
        file.possible_rules(),
        duration(file.worker.visibility) / 1000,
        unknown_patterns(file, handler),
        # A handler may take types that the sinks do not.
        [] if handler is not None else [sink.match for sink in file.sink],
        unread_patterns(handler),
    )
    found = findings(facts, said)
    faults = sum(not it.fine for _, it in found)
    emit(_document(facts, found), _text(facts, found, faults))
    return FAILED if faults else 0


def _key_files(path: Path) -> Iterator[Path]:
    """Return the files that the sealing keys refer to; the settings have only their content."""
    return files_in(read(path, ask=False).document.values["privacy"]["sealing_keys"])


def _history(file: Config) -> HistoryFacts | None:
    uri = history_of(file)
    if not uri:
        return None
    return history_facts(uri, file.history.keep, file.history.most, file.secret_bytes)


NO_SUBJECT = Facts(
    unseen=(
        (
            "account",
            Finding("AWS: no queue or function is named; --queue names one", unchecked=True),
        ),
    )
)


def _on_sqs(file: Config) -> tuple[Config, list[tuple[str, Finding]]]:
    """Return the settings without a source and a place of dead letters that are no SQS queues, and
    a finding for each of these."""
    said = {"source of the worker": file.worker.queue, "place of dead letters": file.letters}
    others = {what: uri for what, uri in said.items() if uri and scheme_of(uri) not in SCHEMES}
    if file.letters in others.values():
        file = msgspec.structs.replace(file, letters="")
    if file.worker.queue in others.values():
        file = msgspec.structs.replace(file, worker=msgspec.structs.replace(file.worker, queue=""))
    return file, [
        ("queue", Finding(f"the {what} {masked(uri)}: only SQS queues are checked", unchecked=True))
        for what, uri in others.items()
    ]


def _subject(
    file: Config,
    queue: str | None,
    functions: Sequence[str],
    buses: Sequence[str],
    region: str | None,
    endpoint: str | None,
) -> Subject | None:
    """Return the AWS resources to check; None if neither the options nor the file name any."""
    on_aws = (file.store or "").startswith("dynamodb:")
    named = queue or file.worker.queue or file.infra != Infra()
    if not (named or functions or buses or on_aws):
        return None
    given = {"queue": queue, "region": region, "endpoint": endpoint}
    asked = msgspec.structs.replace(file.infra, **{k: v for k, v in given.items() if v})
    infra, topology = placed_topology(file, asked, matching=False)
    uri = queue or file.infra.queue or file.worker.queue
    address = parse(uri) if "/" in uri else Address(topology.queue)
    access = Access(region, endpoint).over(address.access).over(infra.access)
    letters = parse(file.letters) if file.letters else None
    return Subject(access, topology, address if named else None, letters, functions, buses)


def _text(facts: Facts, found: Sequence[tuple[str, Finding]], faults: int) -> str:
    identity = facts.identity
    lines = []
    if identity is not None:
        fields = msgspec.to_builtins(identity).items()
        lines.append(", ".join(f"{name} {value or 'not known'}" for name, value in fields))
    area = ""
    for place, one in found:
        if place != area:
            lines.append(f"\n{place}")
            area = place
        lines.append(indent(finding_text(one), "  "))
    unchecked = sum(it.unchecked for _, it in found)
    checked = counted(len(found) - unchecked, "check")
    without = f"; {unchecked} not checked" if unchecked else ""
    if faults:
        verdict = f"{counted(faults, 'fault')} in {checked}{without}"
    elif unchecked:
        verdict = f"no fault found in {checked}{without}"
    else:
        verdict = f"the set-up is sound: no fault in {checked}"
    return "\n".join([*lines, "", verdict]).lstrip("\n")


def _document(facts: Facts, found: Sequence[tuple[str, Finding]]) -> dict[str, Any]:
    identity = msgspec.to_builtins(facts.identity) if facts.identity else {}
    checks = [
        {"area": area, "what": it.what, "state": it.state, "fix": it.fix} for area, it in found
    ]
    return {**identity, "sound": all(it["state"] == "ok" for it in checks), "checks": checks}
