"""The stack of a function, deployed on an emulator: each event runs once."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from eventonce.cli import main
from eventonce.errors import ConfigError
from eventonce.infra.stack import deploy
from eventonce.infra.topology import Infra, topology_of
from tests.helpers import until
from tests.integration.infra.account import Client
from tests.servers.aws import CREDENTIALS, REGION

SOURCE = "org.example"
"""Another source than in the other tests here, whose events must not reach the function."""

VOICE = Path(__file__).parents[2] / "shapes" / "genesys_acd_end_voice.json"

CODE_PLACE = "s3://code/function.zip"

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


def test_the_function_of_the_stack_runs_each_event_once_and_is_not_deleted_by_mistake(
    endpoint: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sqs = client("sqs")
    sink = sqs.create_queue(QueueName="sink")["QueueUrl"]
    infra = Infra(source=SOURCE, region=REGION, endpoint=endpoint, code=_packed(client("s3")))
    topology = topology_of(infra, name="calls")
    deploy(infra, topology)
    _set_variables(client("lambda"), ENDPOINT=endpoint, SINK=sink, **CREDENTIALS)

    event = json.loads(VOICE.read_text()) | {"source": f"{SOURCE}.genesys"}
    Path("event.json").write_text(json.dumps(event))
    queue = sqs.get_queue_url(QueueName="calls")["QueueUrl"]
    for copies in ("1", "3"):
        _sent("event.json", "--copies", copies, "--region", REGION, "--endpoint", endpoint)
        # A copy beside the first run is busy, and comes again after the visibility timeout.
        until(lambda: _count(sqs, queue) == 0 and _count(sqs, sink) > 0)
    assert _count(sqs, sink) == 1, "four copies, one effect"
    assert _count(sqs, sqs.get_queue_url(QueueName="calls-dead")["QueueUrl"]) == 0

    with pytest.raises(ConfigError, match="it runs a function, which would be deleted"):
        deploy(replace(infra, code=""), topology)
    assert deploy(infra, topology).steps == []


def test_the_template_that_infra_sam_prints_can_be_deployed(
    endpoint: str, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """`sam build` and `sam deploy` put the code into a bucket; the parameters have defaults."""
    words = "infra sam --name printed --store dynamodb://seen --parameter CreateDashboard=yes"
    with pytest.raises(SystemExit) as stop:
        main([*words.split(), "--source", SOURCE])
    assert not stop.value.code
    cloudformation = client("cloudformation")
    cloudformation.create_stack(
        StackName="printed",
        TemplateBody=capsys.readouterr().out.replace("CodeUri: .", f"CodeUri: {CODE_PLACE}"),
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
    )
    cloudformation.get_waiter("stack_create_complete").wait(StackName="printed")
    told = client("lambda").get_function_configuration(FunctionName="printed")
    assert told["Environment"]["Variables"] == {
        "EVENTONCE_NAME": "printed",
        "EVENTONCE_STORE": "dynamodb://seen",
        "EVENTONCE_METRICS": "emf",
    }
    board = client("cloudwatch").get_dashboard(DashboardName="printed")["DashboardBody"]
    shown = [one for it in json.loads(board)["widgets"] for one in it["properties"]["metrics"]]
    assert ["AWS/Lambda", "Errors", "FunctionName", "printed"] in shown
    assert ["eventonce", "dead_letters", "consumer", "printed"] in shown


def test_a_function_without_a_store_is_refused(endpoint: str) -> None:
    infra = Infra(source=SOURCE, region=REGION, endpoint=endpoint, code=CODE_PLACE)
    topology = topology_of(infra, name="storeless", store="redis://cache/0")
    with pytest.raises(ConfigError, match="StoreUri"):
        deploy(infra, topology)
    assert deploy(infra, topology, store="redis://cache/0", dry_run=True).steps


def _sent(*args: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["send", *args, "--bus", "default", "--every", "0"])
    assert not stop.value.code


def _packed(s3: Any) -> str:
    """The function's zip file in a bucket; returns its address."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("function.py", CODE)
    where = {"LocationConstraint": REGION}
    s3.create_bucket(Bucket="code", CreateBucketConfiguration=where)
    s3.put_object(Bucket="code", Key="function.zip", Body=packed.getvalue())
    return CODE_PLACE


def _set_variables(functions: Any, **told: str) -> None:
    """Variables for the emulator, beside the variables of the template."""
    held = functions.get_function_configuration(FunctionName="calls")["Environment"]["Variables"]
    functions.update_function_configuration(
        FunctionName="calls", Environment={"Variables": {**held, **told}}
    )


def _count(sqs: Any, url: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(found[name]) for name in names)
