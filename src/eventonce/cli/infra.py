"""`eventonce infra`: the AWS resources around a consumer, made or printed as templates."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import msgspec

from eventonce.cli import Subcommands, started_as
from eventonce.cli.options import config_option, json_option, name_option, store_option
from eventonce.cli.output import table
from eventonce.config import Config, load
from eventonce.errors import ConfigError, EventonceError
from eventonce.infra.plan import Infra, Plan, planned
from eventonce.sqs.address import parse


@click.group(cls=Subcommands)
def command() -> None:
    """Queue, dead-letter queues, rule, target, policies and table.

    What they are called and which events they are for is said by the table [infra] of the file, or
    by options, which win.
    """


def _planned_by(function: Any) -> Any:
    for decorate in (
        json_option,
        click.option("--profile", help="A profile of ~/.aws/config."),
        click.option("--endpoint", metavar="URL", help="Another endpoint, such as an emulator's."),
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


@command.command("apply")
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@_planned_by
def apply_plan(*, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Make what is missing, mend what differs.

    Nothing is ever deleted. Each step is said when it is done.
    """
    infra, plan = _plan(**options)
    applying = _module("apply").apply
    if as_json:
        steps: list[str] = []
        try:
            done = applying(infra, plan, dry_run=dry_run, say=steps.append)
        except EventonceError as error:
            told = {"dry_run": dry_run, "steps": steps, "error": str(error)}
            click.echo(msgspec.json.encode(told))
            raise
        click.echo(msgspec.json.encode({"dry_run": dry_run, **msgspec.structs.asdict(done)}))
        return
    done = applying(infra, plan, dry_run=dry_run, say=click.echo)
    if not done.steps:
        click.echo("nothing to do: all of it is there")
    for difference in done.left:
        click.echo(f"left as it is: {difference}", err=True)
    click.echo(f"\n{table(list(done.resources.items()))}")
    click.echo(f"\nnext: {_next(plan, dry_run=dry_run)}", err=True)


def _next(plan: Plan, *, dry_run: bool) -> str:
    if dry_run:
        return "the same without --dry-run does it"
    to = f"--queue sqs://{plan.queue}" if plan.theirs else f"--bus {plan.bus}"
    typed = started_as()
    return f"{typed} send FILE {to} --copies 3 tries it, and {typed} run takes the events"


def _printed(function: Any) -> Any:
    for decorate in (
        _planned_by,
        click.option("--vpc", is_flag=True, help="Inside a VPC, with endpoints for it."),
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
def sam(*, role: str, vpc: bool, as_json: bool, **options: Any) -> None:
    """Print a SAM template, with alarms.

    With the least rights, too: YAML, or JSON with --json.
    """
    plan = _template_plan("sam", role, options)
    made = _module("sam")
    template = made.template(plan, role, vpc=vpc)
    if as_json:
        click.echo(_indented(template))
    else:
        click.echo(f"# {made.WHAT_NOW[role]}\n{_module('yaml').dump(template)}", nl=False)


@command.command("terraform")
@_printed
def terraform(*, role: str, vpc: bool, as_json: bool, **options: Any) -> None:  # noqa: ARG001  it always is
    """Print Terraform's main.tf.json, with alarms.

    With the least rights, too.
    """
    plan = _template_plan("terraform", role, options)
    click.echo(_indented(_module("terraform").document(plan, role, vpc=vpc)))


@command.command("iam")
@click.option(
    "--role",
    type=click.Choice(["lambda", "worker", "operate", "send", "apply"]),
    default="worker",
    show_default=True,
    help="Whose policy.",
)
@click.option("--account", help="The account's number, so that nothing of another one is meant.")
@_planned_by
def iam(*, role: str, account: str | None, as_json: bool, **options: Any) -> None:  # noqa: ARG001  it always is
    """Print the IAM policy that a role needs.

    With all that the code asks for, and nothing else.
    """
    infra, plan = _plan(**options, matching=False)
    _warn(plan)
    for what, said in (("account", account), ("region", infra.region)):
        if not said:
            click.echo(f"any {what} is meant, unless --{what} says one", err=True)
    rights = _module("rights")
    reach = rights.named(plan, region=infra.region or "*", account=account or "*")
    click.echo(_indented(rights.policy(role, reach)))


def _template_plan(command: str, role: str, options: dict[str, Any]) -> Plan:
    _, plan = _plan(**options)
    if role == "lambda" and plan.embedded:
        raise ConfigError(
            f"infra {command}: the store {plan.embedded}: ends with the machine that a function "
            f"runs on: every copy would run. Give a shared one, such as --store "
            f"dynamodb://{plan.name}, or print the template of a worker with --role worker"
        )
    _warn(plan)
    return plan


def _warn(plan: Plan) -> None:
    if plan.misplaced:
        click.echo(f"eventonce: {plan.misplaced}", err=True)


def _plan(
    config: Path | None,
    name: str | None,
    store: str | None,
    *,
    matching: bool = True,
    **given: Any,
) -> tuple[Infra, Plan]:
    """What the options and the file say together."""
    said = load(config)
    options = {key: value for key, value in given.items() if value is not None}
    if "pattern" in options:
        options["pattern"] = _pattern(options["pattern"])
    elif "source" in options:
        options["pattern"] = {}  # the file's would win over it
    if name:
        options["name"] = name
    said = msgspec.structs.replace(said, name=name or said.name, store=store or said.store)
    return plan_of(said, msgspec.structs.replace(said.infra, **options), matching=matching)


def plan_of(said: Config, asked: Infra, *, matching: bool) -> tuple[Infra, Plan]:
    """What the file says, with this as its table `[infra]`, and the plan that follows."""
    infra = _placed(asked, said.worker.queue)
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


def _pattern(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"--pattern: {error}; a JSON object was expected, such as "
            '{"source": [{"prefix": "aws.partner/genesys.com"}]}'
        ) from error


def _module(name: str) -> ModuleType:
    try:
        return import_module(f"eventonce.infra.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError('eventonce infra needs: pip install "eventonce[dynamodb]"') from error


def _indented(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)
