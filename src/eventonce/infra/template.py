"""The two templates, `template.yaml` and `main.tf`, and the values of their parameters.

Both files take the same parameters, `QueueName` of the one being `queue_name` of the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, Literal

from eventonce.errors import ConfigError
from eventonce.infra import iam
from eventonce.infra.plan import FIFO, Plan
from eventonce.infra.targets import Place
from eventonce.rules.tomltext import meant

Value = str | int | list[str]
Values = dict[str, Value]
Role = Literal["lambda", "worker"]

CLOUDFORMATION: Final = files("eventonce.infra").joinpath("template.yaml").read_text("utf-8")
TERRAFORM: Final = files("eventonce.infra").joinpath("main.tf").read_text("utf-8")

_PARAMETER: Final = re.compile(r"^  (\w+):\n    Type: (\w+)\n", re.MULTILINE)
PARAMETERS: Final = dict(_PARAMETER.findall(CLOUDFORMATION))
"""The parameters of the template, each with its type."""


def values(plan: Plan, role: Role, place: Place, given: Mapping[str, str]) -> Values:
    """The parameters of a plan; `given` ones win."""
    found: Values = {
        "Name": plan.name,
        "Role": role,
        "ConsumerName": plan.consumer,
        "Timeout": plan.timeout,
        "BusName": plan.bus,
        "RuleName": plan.rule,
        "EventPattern": json.dumps(plan.pattern),
        "QueueName": plan.queue.removesuffix(FIFO),
        "Fifo": _flag(plan.fifo),
        "VisibilityTimeout": plan.visibility,
        "MaxReceiveCount": plan.receives,
        "LetterQueueName": plan.letter_queue,
        "LetterQueueFifo": _flag(plan.letter_queue.endswith(FIFO)),
        "SinkQueueArns": [iam.queue_arn(it, place) for it in plan.sends],
        "SinkBusArns": [place.of(it).bus(it.name) for it in plan.puts],
        **_table(plan, place),
    }
    if plan.letters is not None and not plan.letter_queue:
        found["LetterQueueArn"] = iam.queue_arn(plan.letters, place)
    for name, text in given.items():
        found[name] = typed(name, text)
    return found


def _table(plan: Plan, place: Place) -> Values:
    table = plan.table
    if table is None:
        return {"TableName": ""}
    options = {"key": table.key, "expiry": table.expiry}
    found: Values = {f"Table{it.capitalize()}": value for it, value in options.items() if value}
    if table.is_in(place.region):
        found["TableName"] = table.name
    else:
        found["TableArn"] = iam.table_arn(plan, place)
        options["region"] = table.region
    said = "&".join(f"{name}={value}" for name, value in options.items() if value)
    found["StoreUri"] = f"dynamodb://{table.name}" + (f"?{said}" if said else "")
    return found


def _flag(value: bool) -> str:  # noqa: FBT001  its only argument
    return "true" if value else "false"


def typed(name: str, text: str) -> Value:
    """The value of a parameter from its text; ConfigError if the template has no such parameter."""
    kind = PARAMETERS.get(name)
    if kind is None:
        raise ConfigError(
            f"infra: the template has no parameter {name}{meant(name, PARAMETERS)}; the parameters "
            f"are {', '.join(PARAMETERS)}"
        )
    if kind == "CommaDelimitedList":
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind == "Number":
        try:
            return int(text)
        except ValueError as error:
            raise ConfigError(
                f"infra: the parameter {name} must be a number, not {text!r}"
            ) from error
    return text


def parameters(found: Values) -> list[dict[str, str]]:
    """The values as CloudFormation takes them."""
    return [
        {
            "ParameterKey": name,
            "ParameterValue": ",".join(value) if isinstance(value, list) else str(value),
        }
        for name, value in found.items()
    ]


def variables(found: Values) -> dict[str, Any]:
    """The values as Terraform takes them, a `terraform.tfvars.json`."""
    flags = {"true": True, "false": False}
    return {
        re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): flags.get(value, value)
        if isinstance(value, str)
        else value
        for name, value in found.items()
    }


def cloudformation(found: Values) -> str:
    """The template with these defaults; its comments and their order stay."""
    text = CLOUDFORMATION
    for said in parameters(found):
        name, value = said.values()
        before = rf"(?m)^(  {name}:\n    Type: .*\n)(?:    Default: .*\n)?"
        text = _put(text, before, f"    Default: {json.dumps(value)}\n")
    return text


def terraform(found: Values) -> str:
    """The module with these defaults."""
    text = TERRAFORM
    for name, value in variables(found).items():
        # A text of the user's own is not interpolated.
        literal = json.dumps(value).replace("${", "$${").replace("%{", "%%{")
        before = rf'(?m)^(variable "{name}" {{\n  type .*\n)(?:  default .*\n)?'
        text = _put(text, before, f"  default     = {literal}\n")
    return text


def _put(text: str, before: str, line: str) -> str:
    put, count = re.subn(before, lambda found: found[1] + line, text)
    assert count == 1, line
    return put
