"""One function behind every trigger that AWS has for it: each event takes effect once, whichever
trigger delivers the event, and whichever delivers its copy."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest

from tests.helpers import PATIENCE, until
from tests.integration.end_to_end import BUS, SOURCE, TYPE, Account, account, call, deploy
from tests.servers.aws import REGION

STORE = "dynamodb://doors?timeout=60"
FUNCTION = f"""
from eventonce import Consumer
from eventonce.aws import lambda_handler
from handling import handle

consumer = Consumer("{STORE}", name="doors", rules="genesys", handler=handle)
consumer.store.create()
handler = lambda_handler(consumer)
"""


class Triggers:
    """The triggers of the function; each sends an event as it is, or makes one from its detail."""

    def __init__(self, world: Account) -> None:
        self.world = world
        self.arn = deploy("doors", FUNCTION)
        self.clients = {
            name: boto3.client(name)
            for name in ("lambda", "sns", "apigatewayv2", "elbv2", "events", "sqs")
        }

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def directly(self, event: Any) -> dict[str, Any]:
        answer = self.clients["lambda"].invoke(FunctionName="doors", Payload=json.dumps(event))
        assert "FunctionError" not in answer, answer["Payload"].read()
        found: dict[str, Any] = json.loads(json.loads(answer["Payload"].read())["body"])
        return found

    def as_a_list(self, event: dict[str, Any]) -> None:
        assert self.directly([event, event])["duplicates"] >= 1

    def by_function_url(self, event: dict[str, Any]) -> None:
        made = self.clients["lambda"].create_function_url_config(
            FunctionName="doors", AuthType="NONE"
        )
        host = urlsplit(made["FunctionUrl"]).netloc
        self._posted(host, "/", event)

    def by_api_gateway(self, event: dict[str, Any]) -> None:
        gateway = self.clients["apigatewayv2"]
        api = gateway.create_api(Name="doors", ProtocolType="HTTP")["ApiId"]
        integration = gateway.create_integration(
            ApiId=api,
            IntegrationType="AWS_PROXY",
            IntegrationUri=self.arn,
            PayloadFormatVersion="2.0",
        )["IntegrationId"]
        gateway.create_route(
            ApiId=api, RouteKey="POST /events", Target=f"integrations/{integration}"
        )
        gateway.create_stage(ApiId=api, StageName="$default", AutoDeploy=True)
        self._posted(f"{api}.execute-api.127.0.0.1", "/events", event)

    def by_load_balancer(self, event: dict[str, Any]) -> None:
        balancing = self.clients["elbv2"]
        group = balancing.create_target_group(Name="doors", TargetType="lambda")
        group_arn = group["TargetGroups"][0]["TargetGroupArn"]
        balancing.modify_target_group_attributes(
            TargetGroupArn=group_arn,
            Attributes=[{"Key": "lambda.multi_value_headers.enabled", "Value": "true"}],
        )
        balancing.register_targets(TargetGroupArn=group_arn, Targets=[{"Id": self.arn}])
        balancer = balancing.create_load_balancer(
            Name="doors", Subnets=["subnet-a", "subnet-b"], Type="application"
        )
        balancing.create_listener(
            LoadBalancerArn=balancer["LoadBalancers"][0]["LoadBalancerArn"],
            Protocol="HTTP",
            Port=80,
            DefaultActions=[{"Type": "forward", "TargetGroupArn": group_arn}],
        )
        # The emulator looks for a load balancer in the region that a signature names.
        scope = f"AKIAEVENTONCETESTS00/20261115/{REGION}/elasticloadbalancing/aws4_request"
        signed = {"Authorization": f"AWS4-HMAC-SHA256 Credential={scope}"}
        self._posted("doors.alb.localhost", "/events", event, **signed)

    def _posted(self, host: str, path: str, event: dict[str, Any], **headers: str) -> None:
        """A request as a client of that host sends it, sent to the address of the emulator."""
        emulator = urlsplit(self.world.endpoint)
        line = http.client.HTTPConnection(emulator.hostname or "", emulator.port, timeout=PATIENCE)
        headers |= {"Host": host, "Content-Type": "application/json"}
        line.request("POST", path, json.dumps([event]), headers)
        answer = line.getresponse()
        said = answer.read()
        line.close()
        assert answer.status == 200, said
        assert json.loads(said)["events"][0]["status"] == "done", said

    def by_topic(self, event: dict[str, Any]) -> None:
        topics = self.clients["sns"]
        topic = topics.create_topic(Name="doors")["TopicArn"]
        topics.subscribe(TopicArn=topic, Protocol="lambda", Endpoint=self.arn)
        topics.publish(TopicArn=topic, Message=json.dumps(event))

    def by_topic_and_queue(self, event: dict[str, Any]) -> None:
        queues, topics = self.clients["sqs"], self.clients["sns"]
        url = queues.create_queue(QueueName="doors")["QueueUrl"]
        found = queues.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        queue = found["Attributes"]["QueueArn"]
        self.clients["lambda"].create_event_source_mapping(
            EventSourceArn=queue,
            FunctionName="doors",
            FunctionResponseTypes=["ReportBatchItemFailures"],
        )
        topic = topics.create_topic(Name="doors-queue")["TopicArn"]
        topics.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue)
        topics.publish(TopicArn=topic, Message=json.dumps(event))

    def by_rule(self, event: dict[str, Any]) -> None:
        events = self.clients["events"]
        events.create_event_bus(Name=BUS)
        pattern = json.dumps({"source": [{"prefix": SOURCE}]})
        events.put_rule(Name="doors", EventBusName=BUS, EventPattern=pattern)
        target = {"Id": "doors", "Arn": self.arn}
        events.put_targets(Rule="doors", EventBusName=BUS, Targets=[target])
        self.world.put(event["detail"])


@pytest.fixture(scope="module")
def triggers() -> Iterator[Triggers]:
    with account() as world:
        made = Triggers(world)
        yield made
        made.close()


WAYS: list[Callable[[Triggers, dict[str, Any]], None]] = [
    Triggers.as_a_list,
    Triggers.by_function_url,
    Triggers.by_api_gateway,
    Triggers.by_load_balancer,
    Triggers.by_topic,
    Triggers.by_topic_and_queue,
    Triggers.by_rule,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_event_takes_effect_once_through_each_trigger(
    triggers: Triggers, way: Callable[[Triggers, dict[str, Any]], None]
) -> None:
    name = way.__name__
    event = {
        "id": f"id-{name}",
        "detail-type": TYPE,
        "source": SOURCE,
        "detail": call(name),
    }
    way(triggers, event)
    until(lambda: triggers.world.counted()[name] >= 1)
    until(lambda: settled(triggers, event))
    assert triggers.world.counted()[name] == 1


def settled(triggers: Triggers, event: dict[str, Any]) -> bool:
    """Whether the same event, given to the function directly, is a copy; it may be busy before."""
    answer = triggers.clients["lambda"].invoke(FunctionName="doors", Payload=json.dumps(event))
    said = json.loads(answer["Payload"].read())
    if "FunctionError" in answer:
        assert "busy" in said["errorMessage"], said
        return False
    return bool(json.loads(said["body"])["duplicates"] == 1)
