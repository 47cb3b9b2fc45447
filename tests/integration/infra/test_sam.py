"""The printed SAM template, deployed as it is on an emulator: the stack stands, and events run."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventonce.cli import main
from eventonce.infra import sam
from eventonce.infra.apply import apply
from eventonce.infra.plan import Infra, planned
from eventonce.stores.dynamodb import DynamoDBStore
from tests.servers.aws import CREDENTIALS, REGION

PATIENCE = 180.0
"""Seconds for the stack, and for the first event: together they take four on a quiet machine."""

SOURCE = "org.example"
"""Not that of the other tests here, whose events are none of the function's."""

VOICE = Path(__file__).parents[2] / "shapes" / "genesys_acd_end_voice.json"

CODE = """
import os
import boto3
from eventonce import Consumer
from eventonce.aws import lambda_handler

where = "?endpoint=" + os.environ["ENDPOINT"]
consumer = Consumer(os.environ["EVENTONCE_STORE"] + where, name=os.environ["EVENTONCE_NAME"],
                    rules="genesys")
sqs = boto3.client("sqs", endpoint_url=os.environ["ENDPOINT"])

@consumer.on()
def effect(job):
    sqs.send_message(QueueUrl=os.environ["SINK"], MessageBody=job.effect_id)

handler = lambda_handler(consumer)
"""


def test_the_stack_stands_runs_each_event_once_and_is_what_apply_would_make(
    endpoint: str, client: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    infra = Infra(source=SOURCE, region=REGION, endpoint=endpoint)
    plan = planned(infra, name="calls")
    sqs = client("sqs")
    sink = sqs.create_queue(QueueName="sink")["QueueUrl"]
    template = sam.template(plan)
    _with_code(template, client("s3"), ENDPOINT=endpoint, SINK=sink)
    _deployed(client("cloudformation"), template)

    event = json.loads(VOICE.read_text()) | {"source": f"{SOURCE}.genesys"}
    Path("event.json").write_text(json.dumps(event))
    queue = sqs.get_queue_url(QueueName="calls")["QueueUrl"]
    for copies in ("1", "3"):
        _sent("event.json", "--copies", copies, "--region", REGION, "--endpoint", endpoint)
        # A copy that meets the first run is not taken, and comes again after the visibility.
        _until(lambda: _count(sqs, queue) == 0 and _count(sqs, sink) > 0)
    assert _count(sqs, sink) == 1, "four copies, one effect"
    assert _count(sqs, sqs.get_queue_url(QueueName="calls-dead")["QueueUrl"]) == 0

    # The emulator's CloudFormation passes over a table's expiry; all else is as it should be.
    assert apply(infra, plan).steps == ["let it expire items by expiration"]
    store = DynamoDBStore.from_uri(f"dynamodb://calls?region={REGION}&endpoint={endpoint}")
    assert all(found.fine for found in store.check())
    store.close()


def _sent(*args: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["send", *args, "--bus", "default", "--every", "0"])
    assert not stop.value.code


def _with_code(template: dict[str, Any], s3: Any, **told: str) -> None:
    """What `sam build` and `sam package` do: the code is in a bucket."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("function.py", CODE)
    where = {"LocationConstraint": REGION}
    s3.create_bucket(Bucket="code", CreateBucketConfiguration=where)
    s3.put_object(Bucket="code", Key="function.zip", Body=packed.getvalue())
    function = template["Resources"]["Function"]["Properties"]
    function["CodeUri"] = "s3://code/function.zip"
    function["Environment"]["Variables"] |= {**told, **CREDENTIALS}


def _deployed(cloudformation: Any, template: dict[str, Any]) -> None:
    needs = ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]
    cloudformation.create_stack(
        StackName="calls", TemplateBody=json.dumps(template), Capabilities=needs
    )

    def status() -> str:
        (stack,) = cloudformation.describe_stacks(StackName="calls")["Stacks"]
        return str(stack["StackStatus"])

    _until(lambda: "PROGRESS" not in status())
    assert status() == "CREATE_COMPLETE"


def _count(sqs: Any, url: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(found[name]) for name in names)


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.1)
