"""`eventonce infra`: the AWS resources around a consumer, deployed or printed as templates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import msgspec

from eventonce.aws.sqs import parse
from eventonce.cli import Subcommands, started_as
from eventonce.cli.options import config_option, json_option, name_option, store_option
from eventonce.cli.output import table
from eventonce.config import Config, load
from eventonce.errors import ConfigError
from eventonce.infra import iam, template
from eventonce.infra.plan import Infra, Plan, planned
from eventonce.infra.targets import ANY, Place
from eventonce.infra.template import Role


@click.group(cls=Subcommands)
def command() -> None:
    """Queue, dead-letter queues, rule, table, function, policies and alarms.

    Their names and the events they are for stand in the table [infra] of the file, or in options,
    which win.
    """


def _options(function: Any) -> Any:
    for decorate in (
        json_option,
        click.option("--profile", help="A profile of ~/.aws/config."),
        click.option("--endpoint", metavar="URL", help="Another endpoint, such as an emulator's."),
        click.option("--account", help="The account's number, so that no other one is meant."),
        click.option("--region", help="The AWS region; as boto3 finds it, if not given."),
        click.option(
            "--receives", type=int, help="Receives after which SQS gives a message up.  [100]"
        ),
        click.option("--timeout", type=int, help="Seconds a function may run.  [60]"),
        click.option("--fifo", is_flag=True, default=None, help="A queue that keeps an order."),
        click.option("--rule", metavar="NAME", help="The EventBridge rule's name.  [the name]"),
        click.option(
            "--queue", metavar="NAME", help="The queue's name.  [that of [worker], or the name]"
        ),
        click.option("--pattern", metavar="JSON", help="Which events: a whole event pattern."),
        click.option(
            "--source", metavar="PREFIX", help="Which events: what their source begins with."
        ),
        click.option("--bus", metavar="NAME", help="The event bus, a partner's too.  [default]"),
        store_option,
        name_option,
        config_option,
    ):
        function = decorate(function)
    return function


_parameter_option = click.option(
    "--parameter",
    "parameters",
    metavar="NAME=VALUE",
    multiple=True,
    help="A parameter of the template, such as AlarmTopicArn; may be given several times.",
)


@command.command("apply")
@click.option("--dry-run", is_flag=True, help="Only show the change set.")
@click.option(
    "--code",
    metavar="S3_URI",
    help="The function's zip file, s3://BUCKET/KEY.  [none: a worker takes the events]",
)
@_parameter_option
@_options
def apply_plan(*, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Deploy the template through a CloudFormation change set.

    A second time there is nothing to do. A deployment that fails is taken back.
    """
    said, infra, plan = _plan(**options)
    if infra.code:
        _refuse_embedded(plan, "apply")
    deployed = _stack().deploy(
        infra,
        plan,
        store=said.store if infra.code else "",
        dry_run=dry_run,
        say=(lambda _: None) if as_json else click.echo,
    )
    if as_json:
        click.echo(msgspec.json.encode({"dry_run": dry_run, **msgspec.structs.asdict(deployed)}))
        return
    if not deployed.steps:
        click.echo(f"nothing to do: the stack {plan.name} is up to date")
    for warning in deployed.warnings:
        click.echo(f"eventonce: {warning}", err=True)
    if deployed.resources:
        click.echo(f"\n{table(list(deployed.resources.items()))}")
    click.echo(f"\nnext: {_next(plan, dry_run=dry_run)}", err=True)


def _next(plan: Plan, *, dry_run: bool) -> str:
    if dry_run:
        return "the same without --dry-run does it"
    to = f"--queue sqs://{plan.queue}" if plan.theirs else f"--bus {plan.bus}"
    typed = started_as()
    return f"{typed} send FILE {to} --copies 3 tries it, and {typed} run takes the events"


def _printed(function: Any) -> Any:
    for decorate in (
        _options,
        _parameter_option,
        click.option(
            "--role",
            type=click.Choice(["lambda", "worker"]),
            default="lambda",
            show_default=True,
            help="Whether a function takes the events, or a worker.",
        ),
    ):
        function = decorate(function)
    return function


@command.command("sam")
@_printed
def sam(*, role: Role, as_json: bool, **options: Any) -> None:
    """Print the SAM template, with its defaults set.

    With --json only the parameters, as `aws cloudformation` takes them.
    """
    found = _values("sam", role, options)
    if as_json:
        click.echo(_indented(template.parameters(found)))
    else:
        click.echo(template.cloudformation(found), nl=False)


@command.command("terraform")
@_printed
def terraform(*, role: Role, as_json: bool, **options: Any) -> None:
    """Print the Terraform module, with its defaults set.

    With --json only the variables, a terraform.tfvars.json.
    """
    found = _values("terraform", role, options)
    if as_json:
        click.echo(_indented(template.variables(found)))
    else:
        click.echo(template.terraform(found), nl=False)


@command.command("iam")
@click.option(
    "--role",
    type=click.Choice(["lambda", "worker", "operate", "send", "apply"]),
    default="worker",
    show_default=True,
    help="Whose policy.",
)
@_options
def print_policy(*, role: iam.Role, as_json: bool, **options: Any) -> None:  # noqa: ARG001  it always is
    """Print the IAM policy that a role needs.

    With all that the code asks for, and nothing else.
    """
    _, infra, plan = _plan(**options, matching=False)
    _warn(plan)
    click.echo(_indented(iam.policy(role, plan, _place(infra))))


def _values(command: str, role: Role, options: dict[str, Any]) -> template.Values:
    _, infra, plan = _plan(**options)
    if role == "lambda":
        _refuse_embedded(plan, command)
    _warn(plan)
    # An ARN is written out only of queues and buses that sinks and dead letters go to.
    place = _place(infra) if plan.sends or plan.puts or plan.letters else Place(infra.region or ANY)
    return template.values(plan, role, place, infra.parameters)


def _place(infra: Infra) -> Place:
    for what, said in (("account", infra.account), ("region", infra.region)):
        if not said:
            click.echo(f"any {what} is meant, unless --{what} says one", err=True)
    return Place(infra.region or ANY, infra.account or ANY)


def _refuse_embedded(plan: Plan, command: str) -> None:
    if plan.embedded:
        raise ConfigError(
            f"infra {command}: the store {plan.embedded}: ends with the machine that a function "
            f"runs on: every copy would run. Give a shared one, such as --store "
            f"dynamodb://{plan.name}, or let a worker take the events"
            + (" with --role worker" if command != "apply" else ", without --code")
        )


def _warn(plan: Plan) -> None:
    for warning in plan.warnings:
        click.echo(f"eventonce: {warning}", err=True)


def _plan(
    config: Path | None,
    name: str | None,
    store: str | None,
    *,
    matching: bool = True,
    parameters: Sequence[str] = (),
    **given: Any,
) -> tuple[Config, Infra, Plan]:
    """What the options and the file say together."""
    said = load(config)
    options = {key: value for key, value in given.items() if value is not None}
    options["parameters"] = said.infra.parameters | dict(map(_parameter, parameters))
    if "pattern" in options:
        options["pattern"] = _pattern(options["pattern"])
    elif "source" in options:
        options["pattern"] = {}  # the file's would win over it
    if name:
        options["name"] = name
    said = msgspec.structs.replace(said, name=name or said.name, store=store or said.store)
    return said, *plan_of(said, msgspec.structs.replace(said.infra, **options), matching=matching)


def plan_of(said: Config, asked: Infra, *, matching: bool) -> tuple[Infra, Plan]:
    """What the file says, with this as its table `[infra]`, and the plan that follows."""
    infra = _placed(asked, said.worker.queue)
    for parameter, text in infra.parameters.items():
        template.typed(parameter, text)
    return infra, planned(
        infra,
        name=said.name,
        store=said.store,
        rules=[*said.rule, *said.rules, *said.presets],
        letters=said.letters,
        sinks=[sink.to for sink in said.sink],
        matching=matching,
    )


def _placed(infra: Infra, workers: str) -> Infra:
    """The same with the queue's name alone, and where it is: its URI may say it, as `run` and
    `send` have it, and the worker's own is meant if no other is named."""
    if "/" in infra.queue:
        address = parse(infra.queue)
        said = {"region": address.region, "endpoint": address.endpoint, "profile": address.profile}
        where = {key: value for key, value in said.items() if value}
        return msgspec.structs.replace(infra, queue=address.name, **where)
    if infra.queue or not workers:
        return infra
    address = parse(workers)
    return msgspec.structs.replace(
        infra,
        queue=address.name,
        region=infra.region or address.region or "",
        endpoint=infra.endpoint or address.endpoint or "",
        profile=infra.profile or address.profile or "",
    )


def _parameter(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise ConfigError(f"--parameter {text}: NAME=VALUE was expected, such as VpcId=vpc-1")
    return name, value


def _pattern(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"--pattern: {error}; a JSON object was expected, such as "
            '{"source": [{"prefix": "aws.partner/genesys.com"}]}'
        ) from error


def _stack() -> ModuleType:
    try:
        return import_module("eventonce.infra.stack")
    except ModuleNotFoundError as error:
        raise ConfigError('infra apply needs: pip install "eventonce[sqs]"') from error


def _indented(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)
