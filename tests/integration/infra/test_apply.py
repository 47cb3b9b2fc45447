"""`eventonce infra apply` against services that answer: made once, mended, and said."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from eventonce.cli import main
from eventonce.errors import EventonceError
from eventonce.infra.apply import Applied
from eventonce.infra.resources import Place
from eventonce.stores.dynamodb import DynamoDBStore
from tests.integration.infra.account import (
    ACCOUNT,
    PARTNER,
    SOURCE,
    Apply,
    arn,
    attributes,
    change,
    put,
    received,
)
from tests.servers.aws import REGION


@pytest.mark.parametrize("fifo", [False, True])
def test_an_event_goes_from_the_bus_by_the_rule_into_the_queue(
    applied: Apply, name: str, client: Callable[[str], Any], fifo: bool
) -> None:
    applied(bus=f"bus-{name}", fifo=fifo)
    put(client("events"), f"bus-{name}")
    put(client("events"), f"bus-{name}", source="com.example.other")
    (event,) = received(client("sqs"), f"{name}.fifo" if fifo else name)
    assert (event["source"], event["detail"]) == (SOURCE, {"n": 1})


@pytest.mark.parametrize("fifo", [False, True])
def test_the_second_time_there_is_nothing_to_do(
    applied: Apply, name: str, endpoint: str, fifo: bool
) -> None:
    said = {"bus": f"bus-{name}", "fifo": fifo, "store": f"dynamodb://{name}"}
    first, second = applied(**said), applied(**said)
    assert len(first.steps) == 9
    assert second == Applied([], [], first.resources)
    store = DynamoDBStore(name, region=REGION, endpoint=endpoint)
    assert all(found.fine for found in store.check())
    store.close()


def test_a_dry_run_says_all_of_it_and_does_nothing(
    applied: Apply, name: str, client: Callable[[str], Any]
) -> None:
    said = {"bus": f"bus-{name}", "store": f"dynamodb://{name}"}
    dry = applied(dry_run=True, **said)
    assert not client("sqs").list_queues(QueueNamePrefix=name).get("QueueUrls")
    assert not client("events").list_event_buses(NamePrefix=f"bus-{name}")["EventBuses"]
    assert name not in client("dynamodb").list_tables()["TableNames"]
    wet = applied(**said)
    told = [step.replace("ACCOUNT", ACCOUNT) for step in dry.steps]
    assert told == [f"would {step}" for step in wet.steps]


def test_a_dry_run_beside_what_is_there_foresees_no_more_than_is_done(
    applied: Apply, name: str
) -> None:
    applied()
    dry = applied(dry_run=True, bus=f"bus-{name}")
    wet = applied(bus=f"bus-{name}")
    assert dry.steps == [f"would {step}" for step in wet.steps]
    assert dry.resources == wet.resources


def test_each_difference_is_told_and_mended(
    applied: Apply, name: str, client: Callable[[str], Any]
) -> None:
    applied()
    sqs, events = client("sqs"), client("events")
    elsewhere = json.dumps(
        {"deadLetterTargetArn": f"{arn(name)}-undelivered", "maxReceiveCount": 3}
    )
    change(sqs, name, VisibilityTimeout="30", RedrivePolicy=elsewhere, Policy="")
    change(sqs, f"{name}-dead", MessageRetentionPeriod="60")
    events.put_rule(Name=name, EventPattern='{"source": ["other"]}')
    events.disable_rule(Name=name)
    events.put_targets(
        Rule=name,
        Targets=[{"Id": "by-hand", "Arn": arn(name), "InputPath": "$.detail"}],
    )
    events.remove_targets(Rule=name, Ids=[name])
    foreseen = applied(dry_run=True)
    assert len(foreseen.steps) == 6
    mended = applied()
    assert [f"would {step}" for step in mended.steps] == foreseen.steps
    for word in ("VisibilityTimeout", "(was 30)", "RedrivePolicy", "let arn:aws:events", "match"):
        assert any(word in step for step in mended.steps), word
    assert applied().steps == []
    found = attributes(sqs, name)
    assert found["VisibilityTimeout"] == "360"
    assert json.loads(found["RedrivePolicy"])["deadLetterTargetArn"] == f"{arn(name)}-dead"
    assert events.describe_rule(Name=name)["State"] == "ENABLED"
    (target,) = events.list_targets_by_rule(Rule=name)["Targets"]
    assert target["Id"] == "by-hand", "one target, or every event would come twice"
    assert target["InputPath"] == "$.detail"
    assert target["DeadLetterConfig"] == {"Arn": f"{arn(name)}-undelivered"}


def test_a_rule_that_was_switched_off_is_switched_on(
    applied: Apply, name: str, client: Callable[[str], Any]
) -> None:
    applied()
    client("events").disable_rule(Name=name)
    assert applied().steps == [f"enable the rule {name}"]


def test_a_partners_bus_is_joined_and_its_name_says_which_events(
    applied: Apply, name: str, client: Callable[[str], Any]
) -> None:
    applied(source="", bus=f"{PARTNER}-{name}")
    rule = client("events").describe_rule(Name=name, EventBusName=f"{PARTNER}-{name}")
    assert json.loads(rule["EventPattern"]) == {"source": [{"prefix": f"{PARTNER}-{name}"}]}
    assert rule["Arn"] == Place(REGION, ACCOUNT).rule(f"{PARTNER}-{name}", name)


def test_two_who_apply_at_once_end_with_the_same(applied: Apply, name: str) -> None:
    """Whoever comes too late for something is told to run it again, and then finds it there."""
    said = {"bus": f"bus-{name}", "store": f"dynamodb://{name}"}

    def attempt(_: int) -> str:
        try:
            applied(**said)
        except EventonceError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as pool:
        told = [text for text in pool.map(attempt, range(4)) if text]
    assert len(told) < 4, told
    assert applied(**said).left == []
    assert applied(**said).steps == []


Ran = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ran(
    endpoint: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Ran:
    """`eventonce infra apply` beside a file that says it all."""
    monkeypatch.chdir(tmp_path)
    Path("eventonce.toml").write_text(
        f'name = "{name}"\npresets = ["genesys"]\nstore = "dynamodb://{name}"\n'
        f'letters = "sqs://{name}-letters?region={REGION}"\n'
        f'[infra]\nbus = "bus-{name}"\nregion = "{REGION}"\nendpoint = "{endpoint}"\n'
    )

    def ran(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["infra", "apply", *args])
        return int(stop.value.code or 0), *capsys.readouterr()

    return ran


def test_the_command_says_what_it_did_and_what_is_next(ran: Ran, name: str) -> None:
    code, out, err = ran("--dry-run")
    assert code == 0
    assert out.startswith(f"would make the bus bus-{name}\n")
    assert "without --dry-run" in err
    code, out, err = ran()
    assert code == 0
    assert f"make the queue {name}-letters\n" in out
    assert f"make DynamoDB table {name}" in out
    assert f"\nletters      {arn(name)}-letters\n" in out
    assert ran()[1].startswith("nothing to do: all of it is there\n")
    told = json.loads(ran("--json")[1])
    assert told["steps"] == []
    assert told["resources"]["queue"] == arn(name)


def test_a_rule_that_waits_where_a_partners_events_never_come_is_told(ran: Ran, name: str) -> None:
    for dry in (["--dry-run"], []):
        _, _, err = ran(*dry)
        assert f"left as it is: the rule {name} on the bus bus-{name}: the events of aws.par" in err
    # EventBridge takes events of a partner's source from nobody else.
    assert f"eventonce send FILE --queue sqs://{name} " in err
    (left,) = json.loads(ran("--json")[1])["left"]
    assert 'bus = "aws.partner/genesys.com/…"' in left
    _, _, err = ran("--source", SOURCE)
    assert f"eventonce send FILE --bus bus-{name}" in err
    assert "left as it is" not in err


def test_the_command_says_in_json_too_what_was_done_before_a_failure(ran: Ran, name: str) -> None:
    code, out, err = ran("--json", "--store", "dynamodb://any?key=expiration")
    assert code == 2
    told = json.loads(out)
    assert told["steps"][0] == f"make the bus bus-{name}"
    assert "expiration" in told["error"]
    assert told["error"] in err


def test_the_queues_own_uri_may_say_where(ran: Ran, name: str, endpoint: str) -> None:
    Path("eventonce.toml").write_text(f'name = "{name}"\npresets = ["genesys"]\n')
    where = f"sqs://{name}?region={REGION}&endpoint={endpoint}"
    code, out, _ = ran("--queue", where, "--store", "redis://elsewhere")
    assert code == 0
    assert f"make the queue {name}," in out
