"""The templates of a consumer, `template.yaml` and `main.tf`, and of a capture, `capture.yaml` and
`capture.tf`; and the values of their parameters.

Both files of a pair take the same parameters: `QueueName` in YAML is `queue_name` in Terraform.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, Literal

from eventonce.errors import ConfigError
from eventonce.infra import iam
from eventonce.infra.targets import Place
from eventonce.infra.topology import FIFO, Topology
from eventonce.rules.tomltext import meant

Value = str | int | list[str]
Values = dict[str, Value]
Role = Literal["lambda", "worker", "capture"]

_PARAMETER: Final = re.compile(r"^  (\w+):\n    Type: (\w+)\n", re.MULTILINE)


class Template:
    """One set of resources, as a template of CloudFormation and as a module of Terraform."""

    def __init__(self, yaml: str, tf: str) -> None:
        folder = files("eventonce.infra")
        self.cloudformation = folder.joinpath(yaml).read_text("utf-8")
        self.terraform = folder.joinpath(tf).read_text("utf-8")
        self.parameters: dict[str, str] = dict(_PARAMETER.findall(self.cloudformation))
        """The parameters with their types."""


CONSUMER: Final = Template("template.yaml", "main.tf")
CAPTURE: Final = Template("capture.yaml", "capture.tf")


def template_of(role: Role) -> Template:
    """Return the template of a capture, or of a consumer, which is a function or a worker."""
    return CAPTURE if role == "capture" else CONSUMER


def values(topology: Topology, role: Role, place: Place, given: Mapping[str, str]) -> Values:
    """Return the parameters of a topology; those of `given` win."""
    found = _of_capture(topology) if role == "capture" else _of_consumer(topology, role, place)
    for name, text in given.items():
        found[name] = typed(name, text, template_of(role))
    return found


def _of_capture(topology: Topology) -> Values:
    return {
        "BusName": topology.bus,
        "RuleName": topology.capture_rule,
        "EventPattern": json.dumps(topology.pattern),
        "QueueName": topology.capture_queue,
        "LogGroupName": topology.capture_log_group,
    }


def _of_consumer(topology: Topology, role: Role, place: Place) -> Values:
    found: Values = {
        "Name": topology.name,
        "Role": role,
        "ConsumerName": topology.consumer,
        "Timeout": topology.timeout,
        "BusName": topology.bus,
        "RuleName": topology.rule,
        "EventPattern": json.dumps(topology.pattern),
        "QueueName": topology.queue.removesuffix(FIFO),
        "Fifo": _flag(topology.fifo),
        "VisibilityTimeout": topology.visibility,
        "MaxReceiveCount": topology.receives,
        "LetterQueueName": topology.letter_queue,
        "LetterQueueFifo": _flag(topology.letter_queue.endswith(FIFO)),
        "DropOldLetters": _flag(topology.drops_letters),
        "SinkQueueArns": [iam.queue_arn(it, place) for it in topology.sends],
        "SinkBusArns": [place.of(it).bus(it.name) for it in topology.puts],
        **_table(topology, place),
    }
    if topology.letters is not None and not topology.letter_queue:
        found["LetterQueueArn"] = iam.queue_arn(topology.letters, place)
    return found


def _table(topology: Topology, place: Place) -> Values:
    table = topology.table
    if table is None:
        return {"TableName": ""}
    options = {"key": table.key, "expiry": table.expiry}
    found: Values = {f"Table{it.capitalize()}": value for it, value in options.items() if value}
    if table.is_in(place.region):
        found["TableName"] = table.name
    else:
        found["TableArn"] = iam.table_arn(topology, place)
        options["region"] = table.region
    said = "&".join(f"{name}={value}" for name, value in options.items() if value)
    found["StoreUri"] = f"dynamodb://{table.name}" + (f"?{said}" if said else "")
    return found


def _flag(value: bool) -> str:  # noqa: FBT001  its only argument
    return "true" if value else "false"


def typed(name: str, text: str, of: Template = CONSUMER) -> Value:
    """Return the value of a parameter from its text; ConfigError for an unknown parameter."""
    known = of.parameters
    kind = known.get(name)
    if kind is None:
        raise ConfigError(
            f"infra: the template has no parameter {name}{meant(name, known)}; the parameters "
            f"are {', '.join(known)}"
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
    """Return the values in the form of CloudFormation."""
    return [
        {
            "ParameterKey": name,
            "ParameterValue": ",".join(value) if isinstance(value, list) else str(value),
        }
        for name, value in found.items()
    ]


def variables(found: Values) -> dict[str, Any]:
    """Return the values in the form of Terraform, a `terraform.tfvars.json`."""
    flags = {"true": True, "false": False}
    return {
        re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): flags.get(value, value)
        if isinstance(value, str)
        else value
        for name, value in found.items()
    }


def cloudformation(found: Values, of: Template = CONSUMER) -> str:
    """Return the template with these defaults; its comments and its order stay."""
    text = of.cloudformation
    for said in parameters(found):
        name, value = said.values()
        before = rf"(?m)^(  {name}:\n    Type: .*\n)(?:    Default: .*\n)?"
        text = _inserted(text, before, f"    Default: {json.dumps(value)}\n")
    return text


def terraform(found: Values, of: Template = CONSUMER) -> str:
    """Return the module with these defaults."""
    text = of.terraform
    for name, value in variables(found).items():
        # Escaped, so that Terraform does not interpolate a user's text.
        literal = json.dumps(value).replace("${", "$${").replace("%{", "%%{")
        before = rf'(?m)^(variable "{name}" {{\n  type .*\n)(?:  default .*\n)?'
        text = _inserted(text, before, f"  default     = {literal}\n")
    return text


def _inserted(text: str, before: str, line: str) -> str:
    put, count = re.subn(before, lambda found: found[1] + line, text)
    assert count == 1, line
    return put
