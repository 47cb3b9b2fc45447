"""A Lambda function behind an SQS queue: each call is closed once, however often it is reported."""

from __future__ import annotations

import os

import boto3

from eventonce import Consumer, Job
from eventonce.aws import lambda_handler

crm = boto3.client("dynamodb")
consumer = Consumer(os.environ["EVENTONCE_STORE"], name="crm-sync", rules="genesys")


@consumer.on("v2.detail.events.conversation.*.user.end")
def close_call(job: Job) -> None:
    """Stands for a CRM: it counts how often a call is closed."""
    crm.update_item(
        TableName="closed-calls",
        Key={"call": {"S": job.event.body["conversationId"]}},
        UpdateExpression="ADD times :one",
        ExpressionAttributeValues={":one": {"N": "1"}},
    )


handler = lambda_handler(consumer)
