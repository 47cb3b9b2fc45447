"""The SAM and Terraform templates of a capture: linted, consistent, with the needed permissions."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from eventonce.aws.sqs import Queue
from eventonce.infra import iam, template
from eventonce.infra.targets import Place
from eventonce.infra.template import CAPTURE
from eventonce.infra.topology import Infra, topology_of
from eventonce.study.capture.queue import own
from tests.unit.templates import lint, read_cloudformation, read_terraform

HERE = Place("eu-central-1", "123456789012")
TOPOLOGY = topology_of(Infra(source="com.example", fifo=True), name="calls")
VALUES = template.values(TOPOLOGY, "capture", HERE, {"CaptureTo": "log-group"})


@cache
def sam() -> dict[str, Any]:
    return read_cloudformation(CAPTURE.cloudformation)


@cache
def module() -> dict[str, Any]:
    return read_terraform(CAPTURE.terraform)


def test_cfn_lint_finds_nothing() -> None:
    assert lint(template.cloudformation(VALUES, CAPTURE)) == []


def test_both_capture_templates_take_the_same_parameters_with_the_same_defaults() -> None:
    said = sam()["Parameters"]
    ours = {name: it["Default"] for name, it in said.items() if "Default" in it}
    theirs = {name: it for block in module()["variable"] for name, it in block.items()}
    typed = {name: template.typed(name, str(value), CAPTURE) for name, value in ours.items()}
    assert template.variables(typed) == {
        name: it["default"] for name, it in theirs.items() if "default" in it
    }
    assert all(it["Description"] for it in said.values())
    assert [it["description"] for it in theirs.values()] == [
        it["Description"] for it in said.values()
    ]
    assert VALUES.keys() <= said.keys()
    assert '"log-group"' in template.terraform(VALUES, CAPTURE)


def test_both_capture_templates_grant_the_actions_that_infra_iam_prints() -> None:
    printed = {it["Sid"]: it["Action"] for it in iam.policy("capture", TOPOLOGY, HERE)["Statement"]}
    document = sam()["Resources"]["CapturePolicy"]["Properties"]["PolicyDocument"]
    _, queue, log_group = document["Statement"][0]["Fn::If"]
    assert {it["Sid"]: it["Action"] for it in (queue, log_group)} == printed
    policy = CAPTURE.terraform[CAPTURE.terraform.index('"aws_iam_policy"') :]
    found = re.findall(r'Sid +?= "(\w+)".*?Action += (\[.*?\])', policy, re.DOTALL)
    assert {sid: json.loads(actions) for sid, actions in found} == printed


def test_every_terraform_reference_of_a_capture_is_declared() -> None:
    blocks = {
        kind: [name for it in module()[kind] for name in it] for kind in ("variable", "locals")
    }
    declared = {f"var.{name}" for name in blocks["variable"]}
    declared |= {f"local.{name}" for name in blocks["locals"]}
    for block in module()["resource"]:
        declared |= {f"{kind}.{name}" for kind, it in block.items() for name in it}
    code = re.sub(r"#.*", "", CAPTURE.terraform)
    used = set(re.findall(r"\baws_\w+\.\w+|\bvar\.\w+|\blocal\.\w+", code))
    assert used <= declared
    assert {name for name in declared - used if name.startswith(("var.", "local."))} == set()


def test_the_longest_names_are_accepted_by_a_capture_and_by_aws() -> None:
    long = topology_of(Infra(source="s", rule="r" * 64, queue="q" * 68), name="n" * 55)
    found = template.values(long, "capture", HERE, {})
    assert len(str(found["RuleName"])) <= 64
    assert len(str(found["QueueName"])) <= 80
    own(Queue.from_uri(f"sqs://{found['QueueName']}"), said=False)
    for name in ("QueueName", "LogGroupName"):
        assert re.fullmatch(sam()["Parameters"][name]["AllowedPattern"], str(found[name]))
