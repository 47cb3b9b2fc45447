"""The two templates of a capture: linted, of one mind, and with the rights that it needs."""

from __future__ import annotations

import json
import re
from typing import Any

import hcl2
from cfnlint.api import lint
from cfnlint.config import ManualArgs
from cfnlint.decode.cfn_yaml import loads

from eventonce.aws.sqs import Queue
from eventonce.infra import iam, template
from eventonce.infra.plan import Infra, planned
from eventonce.infra.targets import Place
from eventonce.infra.template import CAPTURE
from eventonce.study.capture.queue import own

HERE = Place("eu-central-1", "123456789012")
PLAN = planned(Infra(source="com.example", fifo=True), name="calls")
VALUES = template.values(PLAN, "capture", HERE, {"CaptureTo": "log-group"})
YAML: dict[str, Any] = json.loads(json.dumps(loads(CAPTURE.cloudformation)))
PLAIN = hcl2.SerializationOptions(
    strip_string_quotes=True, with_comments=False, explicit_blocks=False
)
TF: dict[str, Any] = dict(hcl2.loads(CAPTURE.terraform, serialization_options=PLAIN))


def test_cfn_lint_finds_nothing() -> None:
    text = template.cloudformation(VALUES, CAPTURE)
    found = lint(text, config=ManualArgs(regions=["eu-central-1"]))
    assert [str(match) for match in found] == []


def test_both_take_the_same_parameters_with_the_same_defaults() -> None:
    said = YAML["Parameters"]
    ours = {name: it["Default"] for name, it in said.items() if "Default" in it}
    theirs = {name: it for block in TF["variable"] for name, it in block.items()}
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


def test_both_grant_what_infra_iam_prints() -> None:
    printed = {it["Sid"]: it["Action"] for it in iam.policy("capture", PLAN, HERE)["Statement"]}
    document = YAML["Resources"]["CapturePolicy"]["Properties"]["PolicyDocument"]
    _, queue, log_group = document["Statement"][0]["Fn::If"]
    assert {it["Sid"]: it["Action"] for it in (queue, log_group)} == printed
    policy = CAPTURE.terraform[CAPTURE.terraform.index('"aws_iam_policy"') :]
    found = re.findall(r'Sid +?= "(\w+)".*?Action += (\[.*?\])', policy, re.DOTALL)
    assert {sid: json.loads(actions) for sid, actions in found} == printed


def test_every_reference_in_terraform_leads_somewhere() -> None:
    blocks = {kind: [name for it in TF[kind] for name in it] for kind in ("variable", "locals")}
    declared = {f"var.{name}" for name in blocks["variable"]}
    declared |= {f"local.{name}" for name in blocks["locals"]}
    for block in TF["resource"]:
        declared |= {f"{kind}.{name}" for kind, it in block.items() for name in it}
    code = re.sub(r"#.*", "", CAPTURE.terraform)
    used = set(re.findall(r"\baws_\w+\.\w+|\bvar\.\w+|\blocal\.\w+", code))
    assert used <= declared
    assert {name for name in declared - used if name.startswith(("var.", "local."))} == set()


def test_the_names_are_ones_that_a_capture_and_aws_take() -> None:
    long = planned(Infra(source="s", rule="r" * 64, queue="q" * 68), name="n" * 55)
    found = template.values(long, "capture", HERE, {})
    assert len(str(found["RuleName"])) <= 64
    assert len(str(found["QueueName"])) <= 80
    own(Queue.from_uri(f"sqs://{found['QueueName']}"), said=False)
    for name in ("QueueName", "LogGroupName"):
        assert re.fullmatch(YAML["Parameters"][name]["AllowedPattern"], str(found[name]))
