"""The whole example in one command, without an AWS account: `python examples/lambda_sqs/run.py`.

EventBridge, SQS, Lambda and DynamoDB are ministack's; everything else is as it would be on AWS.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

from needed import needed  # noqa: E402  found by the line above

INSTALL = '".[dynamodb,sqs]" ministack aws-sam-translator'
needed("boto3", "ministack", "samtranslator", install=INSTALL)

import boto3  # noqa: E402  known to be there by now
from emulator import drained, emulated_aws, eventonce  # noqa: E402  as the one above

COPIES = 3


def main() -> None:
    """Make the resources, deploy the function, send every call three times, and count."""
    os.chdir(FOLDER)
    with emulated_aws():
        eventonce("infra", "apply")
        _crm()
        queue = _deployed()
        eventonce("send", "calls.jsonl", "--bus", "calls", "--copies", str(COPIES), "--every", "2")
        drained(boto3.client("sqs"), queue)
        print("\nclosed calls")
        for item in boto3.client("dynamodb").scan(TableName="closed-calls")["Items"]:
            print(f"  {item['call']['S']}  {item['times']['N']} time")


def _crm() -> None:
    """The table that stands for a CRM."""
    boto3.client("dynamodb").create_table(
        TableName="closed-calls",
        KeySchema=[{"AttributeName": "call", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "call", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )


def _deployed() -> str:
    """Deploy the function behind the queue; answers the queue's URL.

    Only its own file goes into the archive, since the emulator's Python has eventonce. For AWS,
    `pip install --target` puts eventonce beside it; `eventonce infra sam` prints the template.
    """
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as package:
        package.write("function.py")
    functions = boto3.client("lambda")
    functions.create_function(
        FunctionName="crm-sync",
        Runtime=f"python{sys.version_info.major}.{sys.version_info.minor}",
        Handler="function.handler",
        Role="arn:aws:iam::000000000000:role/crm-sync",
        Code={"ZipFile": archive.getvalue()},
        Timeout=5,
        Environment={"Variables": {"EVENTONCE_STORE": "dynamodb://crm-sync"}},
    )
    sqs = boto3.client("sqs")
    queue = str(sqs.get_queue_url(QueueName="crm-sync")["QueueUrl"])
    attributes = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
    functions.create_event_source_mapping(
        EventSourceArn=attributes["Attributes"]["QueueArn"],
        FunctionName="crm-sync",
        BatchSize=10,
        # Without this, Lambda deletes the whole batch whatever the function answers.
        FunctionResponseTypes=["ReportBatchItemFailures"],
    )
    return queue


main()
