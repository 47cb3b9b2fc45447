"""`eventonce infra`: the AWS resources around a consumer, deployed or printed as templates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from eventonce.cli import Subcommands, started_as
from eventonce.cli.options import (
    config_option,
    endpoint_option,
    json_option,
    name_option,
    options,
    region_option,
    store_option,
)
from eventonce.cli.output import echo_json, remark, table, wants_json
from eventonce.config import Config, load
from eventonce.errors import ConfigError, module_of
from eventonce.infra import iam, template
from eventonce.infra.targets import ANY, Place
from eventonce.infra.template import Role
from eventonce.infra.topology import Infra, Topology, placed, topology_of


@click.group(cls=Subcommands)
def command() -> None:
    """Queue, dead-letter queues, rule, table, function, policies and alarms.

    The table [infra] of the file names them and their events; an option wins over the file.
    """


_options = options(
    config_option,
    name_option,
    store_option,
    click.option(
        "--bus", metavar="NAME", help="The event bus, a partner's too.  [default: default]"
    ),
    click.option("--source", metavar="PREFIX", help="The events: the beginning of the source."),
    click.option("--pattern", metavar="JSON", help="The events: a whole event pattern."),
    click.option(
        "--queue",
        metavar="NAME",
        help="The queue's name.  [default: that of [worker], or the name]",
    ),
    click.option(
        "--rule", metavar="NAME", help="The EventBridge rule's name.  [default: the name]"
    ),
    click.option("--fifo", is_flag=True, default=None, help="A queue that keeps an order."),
    click.option("--timeout", type=int, help="Seconds a function may run.  [default: 60]"),
    click.option(
        "--receives", type=int, help="Receives after which SQS gives a message up.  [default: 100]"
    ),
    region_option,
    click.option("--account", help="The account's number in ARNs.  [default: any; apply asks AWS]"),
    endpoint_option,
    click.option("--profile", help="A profile of ~/.aws/config."),
    json_option,
)

_parameter_option = click.option(
    "--parameter",
    "parameters",
    metavar="NAME=VALUE",
    multiple=True,
    help="A parameter of the template, such as AlarmTopicArn; repeat the option for several.",
)


@command.command("apply")
@click.option(
    "--role",
    type=click.Choice(["consumer", "capture"]),
    default="consumer",
    help="What it is for: a function or a worker; or a rule and a queue for `eventonce capture`.",
)
@click.option("--dry-run", is_flag=True, help="Only show the change set.")
@click.option(
    "--code",
    metavar="S3_URI",
    help="The function's zip file, s3://BUCKET/KEY.  [default: none, for a worker]",
)
@_parameter_option
@_options
def apply_stack(*, role: str, dry_run: bool, **options: Any) -> None:
    """Deploy the template through a CloudFormation change set.

    A second run changes nothing. A deployment that fails is rolled back.
    """
    capture = role == "capture"
    said, infra, topology = _topology(**options, role="capture" if capture else "worker")
    if infra.code and not capture:
        _refuse_embedded(topology, "apply")
    deployed = module_of("sqs", "eventonce.infra.stack", "infra apply needs").deploy(
        infra,
        topology,
        store=said.store if infra.code else "",
        capture=capture,
        dry_run=dry_run,
        say=(lambda _: None) if wants_json() else click.echo,
    )
    if wants_json():
        echo_json({"dry_run": dry_run, **msgspec.structs.asdict(deployed)})
        return
    if not deployed.steps:
        stack = topology.capture if capture else topology.name
        click.echo(f"nothing to do: the stack {stack} is up to date")
    for warning in deployed.warnings:
        remark(warning)
    if deployed.resources:
        click.echo(f"\n{table(list(deployed.resources.items()))}")
    source = deployed.resources.get("CaptureFrom", "")
    click.echo(f"\nnext: {_next(topology, source, dry_run=dry_run)}", err=True)


def _next(topology: Topology, source: str, *, dry_run: bool) -> str:
    if dry_run:
        return "the same command without --dry-run deploys it"
    if source:
        return f"{started_as()} capture {source} --for 7d"
    to = f"--queue sqs://{topology.queue}" if topology.theirs else f"--bus {topology.bus}"
    typed = started_as()
    run = f"{typed} run --queue sqs://{topology.queue}"
    return f"{typed} send FILE {to} --copies 3 sends a trial, {run} processes the events"


_printed = options(
    click.option(
        "--role",
        type=click.Choice(["lambda", "worker", "capture"]),
        default="lambda",
        help="The consumer: a function, or a worker. Or what a capture needs.",
    ),
    _parameter_option,
    _options,
)


@command.command("sam")
@_printed
def sam(*, role: Role, **options: Any) -> None:
    """Print the SAM template, with its defaults set.

    With --json only the parameters, as `aws cloudformation` takes them.
    """
    found = _values("sam", role, options)
    plain = template.cloudformation(found, template.template_of(role))
    click.echo(_indented(template.parameters(found)) if wants_json() else plain, nl=wants_json())


@command.command("terraform")
@_printed
def terraform(*, role: Role, **options: Any) -> None:
    """Print the Terraform module, with its defaults set.

    With --json only the variables, a terraform.tfvars.json.
    """
    found = _values("terraform", role, options)
    plain = template.terraform(found, template.template_of(role))
    click.echo(_indented(template.variables(found)) if wants_json() else plain, nl=wants_json())


@command.command("iam")
@click.option(
    "--role",
    type=click.Choice(["lambda", "worker", "operate", "send", "capture", "apply", "doctor"]),
    default="worker",
    help="Whose policy.",
)
@_options
def print_policy(*, role: iam.Role, **options: Any) -> None:
    """Print the IAM policy of a role, with the least rights."""
    _, infra, topology = _topology(**options, matching=False)
    _warn(topology)
    click.echo(_indented(iam.policy(role, topology, _place(infra))))


def _values(command: str, role: Role, options: dict[str, Any]) -> template.Values:
    _, infra, topology = _topology(**options, role=role)
    if role == "lambda":
        _refuse_embedded(topology, command)
    _warn(topology)
    # Only these ARNs need account and region: queues and buses of sinks and of dead letters.
    place = (
        _place(infra)
        if topology.sends or topology.puts or topology.letters
        else Place(infra.region or ANY)
    )
    return template.values(topology, role, place, infra.parameters)


def _place(infra: Infra) -> Place:
    for what, said in (("account", infra.account), ("region", infra.region)):
        if not said:
            remark(f"the ARNs are for any {what}; --{what} names one")
    return Place(infra.region or ANY, infra.account or ANY)


def _refuse_embedded(topology: Topology, command: str) -> None:
    if topology.embedded:
        raise ConfigError(
            f"infra {command}: a store of {topology.embedded}: is lost with the function's "
            f"machine, so that every copy would run. Give a shared store, such as --store "
            f"dynamodb://{topology.name}, or use a worker: "
            + ("--role worker" if command != "apply" else "leave out --code")
        )


def _warn(topology: Topology) -> None:
    for warning in topology.warnings:
        remark(warning)


def _topology(
    config: Path | None,
    name: str | None,
    store: str | None,
    *,
    matching: bool = True,
    role: Role = "worker",
    parameters: Sequence[str] = (),
    **given: Any,
) -> tuple[Config, Infra, Topology]:
    """Return the settings of file and options, and their topology; options win."""
    said = load(config)
    options = {key: value for key, value in given.items() if value is not None}
    of = template.template_of(role)
    # The parameters of the file belong to a consumer.
    own = {} if of is template.CAPTURE else said.infra.parameters
    options["parameters"] = own | dict(map(_parameter, parameters))
    if "pattern" in options:
        options["pattern"] = _pattern(options["pattern"])
    elif "source" in options:
        options["pattern"] = {}  # the file's pattern would win over the source
    if name:
        options["name"] = name
    said = msgspec.structs.replace(said, name=name or said.name, store=store or said.store)
    asked = msgspec.structs.replace(said.infra, **options)
    return said, *placed_topology(said, asked, matching=matching, of=of)


def placed_topology(
    said: Config, asked: Infra, *, matching: bool, of: template.Template = template.CONSUMER
) -> tuple[Infra, Topology]:
    """Return the table `[infra]` with account and region of its queue, and its topology."""
    infra = placed(asked, said.worker.queue)
    for parameter, text in infra.parameters.items():
        template.typed(parameter, text, of)
    return infra, topology_of(
        infra,
        name=said.name,
        store=said.store,
        rules=[*said.rule, *said.rules, *said.presets],
        letters=said.letters,
        keep_letters=said.keep_letters,
        sinks=[sink.to for sink in said.sink],
        matching=matching,
    )


def _parameter(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise ConfigError(f"--parameter {text}: expected NAME=VALUE, such as VpcId=vpc-1")
    return name, value


def _pattern(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"--pattern: {error}; expected a JSON object, such as "
            '{"source": [{"prefix": "aws.partner/genesys.com"}]}'
        ) from error


def _indented(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)
