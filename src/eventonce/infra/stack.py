"""The stack: deploys the template through a CloudFormation change set, or only shows the set."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final

import msgspec
from botocore.exceptions import BotoCoreError, ClientError, NoRegionError, WaiterError

from eventonce.aws import errors as faults
from eventonce.aws.sessions import connect
from eventonce.errors import ConfigError, EventonceError, SourceUnavailable
from eventonce.infra import template
from eventonce.infra.targets import DEFAULT_BUS, Place
from eventonce.infra.topology import PARTNER_PREFIX, Infra, Topology

REQUEST_ATTEMPTS: Final = 5
READ_TIMEOUT: Final = 20.0  # seconds
POLL_INTERVAL: Final = 1  # seconds
MOST_POLLS: Final = 3600
"""The most polls, an hour in all: a table with its index takes minutes, nothing takes longer."""

CAPABILITIES: Final = ("CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND")
CODE_LINE: Final = "CodeUri: .\n"
NO_CODE: Final = "s3://none/none"
"""The code of a worker's stack, which has no function: SAM still checks the form of the URI."""

_EMPTY: Final = ("didn't contain changes", "No updates are to be performed")
_AT_ONCE: Final = frozenset(
    (
        "AlreadyExistsException",
        "ChangeSetNotFound",
        "InvalidChangeSetStatus",
        "OperationInProgressException",
    )
)
_TAKEN_BACK: Final = frozenset(("DELETE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE"))
IN_REVIEW: Final = "REVIEW_IN_PROGRESS"
"""The status of a stack that has change sets and nothing else yet."""

_STACK_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]*")

Stack = dict[str, Any]


class Deployed(msgspec.Struct, frozen=True):
    """The changes, made or planned, and the resources of the stack."""

    steps: list[str]
    warnings: list[str]
    resources: dict[str, str]
    """The outputs of the stack."""


def deploy(
    infra: Infra,
    topology: Topology,
    *,
    store: str = "",
    capture: bool = False,
    dry_run: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Deployed:
    """Deploy the template, or only show its change set; a second deployment changes nothing.

    `store` is the URI for a function whose store is not on DynamoDB. With `capture`, the template
    of a capture is deployed.
    """
    name = topology.capture if capture else topology.name
    if not _STACK_NAME.fullmatch(name):
        raise ConfigError(
            f"infra apply: the name of a stack cannot be {name!r}: it must have letters, digits "
            f"and '-', a letter first. Write another name into [infra]"
        )
    what = f"CloudFormation stack {name}"
    with _clients(infra, what) as client:
        cloudformation = client("cloudformation")
        there = _stack(cloudformation, name)
        account = infra.account or str(client("sts").get_caller_identity()["Account"])
        place = Place(cloudformation.meta.region_name, account)
        role: template.Role = "capture" if capture else "lambda" if infra.code else "worker"
        wanted = template.values(topology, role, place, infra.parameters)
        if not capture:
            wanted = {"StoreUri": store, **wanted}
            wanted.setdefault("CreateBus", _creates_bus(client("events"), topology, there))
        _check(what, there, wanted, given=infra.parameters)
        body = template.template_of(role).cloudformation
        body = body.replace(CODE_LINE, f"CodeUri: {infra.code or NO_CODE}\n")
        change = _ChangeSet(cloudformation, name, what, there)
        try:
            steps = change.create(body, template.parameters(wanted))
            for step in steps:
                say(f"would {step}" if dry_run else step)
            if steps and not dry_run:
                change.execute()
        finally:
            change.clean_up()
        outputs = (_stack(cloudformation, name) or {}).get("Outputs", ())
    warnings = topology.warnings
    if not capture and topology.table is not None and not topology.table.is_in(place.region):
        warnings.append(
            f"the table {topology.table.name} is in another region or at another endpoint: "
            f"`eventonce store create` creates it there"
        )
    resources = {it["OutputKey"]: it["OutputValue"] for it in outputs}
    return Deployed(steps, warnings, resources)


def _check(
    what: str, there: Stack | None, wanted: template.Values, given: Mapping[str, str]
) -> None:
    """Raise ConfigError for an update that would delete resources that are not eventonce's, or the
    function of this stack."""
    if not there or there["StackStatus"] == IN_REVIEW:
        return
    held = _parameters(there)
    mark = "ConsumerName" if "ConsumerName" in wanted else "CaptureTo"
    if not held.keys() >= {mark, "EventPattern"}:
        raise ConfigError(
            f"{what}: it exists, and is not eventonce's: an update would delete its resources. "
            f"Choose another name, in [infra] or with --name"
        )
    if held.get("Role") == "lambda" != wanted["Role"] and "Role" not in given:
        raise ConfigError(
            f"{what}: it runs a function, which would be deleted. Name its code with --code "
            f"s3://BUCKET/KEY, or replace it by a worker with --parameter Role=worker"
        )


class _ChangeSet:
    """One change set, from its creation to its execution or deletion."""

    def __init__(self, client: Any, stack: str, what: str, there: Stack | None) -> None:
        self._client = client
        self._what = what
        self._token = f"eventonce-{secrets.token_hex(8)}"
        self._set = {"StackName": stack, "ChangeSetName": self._token}
        self._begun = there is None
        self._first = there is None or there["StackStatus"] == IN_REVIEW
        self._pending = False

    def create(self, body: str, parameters: list[dict[str, str]]) -> list[str]:
        """Create the change set; return its changes, none if there is nothing to do."""
        made = self._client.create_change_set(
            **self._set,
            ChangeSetType="CREATE" if self._first else "UPDATE",
            TemplateBody=body,
            Parameters=parameters,
            Capabilities=CAPABILITIES,
            # Without this, a stack whose first deployment failed could only be deleted.
            **({"OnStackFailure": "DELETE"} if self._first else {}),
        )
        self._pending = True
        # The id finds a stack also after its deletion; the name does not.
        self._set = {"StackName": made["StackId"], "ChangeSetName": made["Id"]}
        try:
            _wait(self._client, "change_set_create_complete", **self._set)
        except WaiterError as error:
            reason = str(error.last_response.get("StatusReason", error))
            if any(it in reason for it in _EMPTY):
                return []
            said = f"{self._what}: the change set was refused: {reason}\n{_hint(reason)}"
            raise ConfigError(said) from error
        pages = self._client.get_paginator("describe_change_set").paginate(**self._set)
        return [_step(it["ResourceChange"]) for page in pages for it in page["Changes"]]

    def execute(self) -> None:
        """Execute the changes; CloudFormation rolls all of them back if one fails."""
        self._client.execute_change_set(**self._set, ClientRequestToken=self._token)
        self._pending = False
        status = self._ended("stack_create_complete" if self._first else "stack_update_complete")
        if status == "ROLLBACK_COMPLETE":
            # After the rollback of a first deployment, CloudFormation deletes the stack.
            status = self._ended("stack_delete_complete") or "DELETE_COMPLETE"
        if status:
            pages = self._client.get_paginator("describe_stack_events")
            events = pages.paginate(StackName=self._set["StackName"]).search("StackEvents[]")
            raise _failure(self._what, status, self._token, events)

    def _ended(self, waiter: str) -> str:
        """Wait for the end; return the final status if it is not the expected one, else empty."""
        try:
            _wait(self._client, waiter, StackName=self._set["StackName"])
        except WaiterError as error:
            for found in error.last_response.get("Stacks", ()):
                if not found["StackStatus"].endswith("_IN_PROGRESS"):
                    return str(found["StackStatus"])
            raise SourceUnavailable(
                f"{self._what}: the result of the deployment is not known ({error}). "
                f"CloudFormation continues by itself; run the command again to see it."
            ) from error
        return ""

    def clean_up(self) -> None:
        """Delete a change set that was not executed, and the empty stack that it created."""
        if not self._pending:
            return
        self._client.delete_change_set(**self._set)
        name = self._set["StackName"]
        there = _stack(self._client, name) if self._begun else None
        if there and there["StackStatus"] == IN_REVIEW:
            self._client.delete_stack(StackName=name)


def _step(change: dict[str, Any]) -> str:
    """Return one change as a line: action, resource, and the properties that change."""
    details = change.get("Details", ())
    action = str(change["Action"]).lower()
    if change.get("Replacement") == "True":
        action = "replace"
    elif details and all(it["Evaluation"] == "Dynamic" for it in details):
        # The property refers to a resource that changes; only the execution shows whether the value
        # of the property changes.
        action = f"maybe {action}"
    said = f"{action} {change['LogicalResourceId']} ({change['ResourceType']})"
    if change.get("PolicyAction") in ("Retain", "ReplaceAndRetain"):
        said += ", the old one is kept outside the stack"
    targets = (detail["Target"] for detail in details)
    names = dict.fromkeys(it.get("Name") or it["Attribute"] for it in targets)
    return f"{said}: {', '.join(names)}" if names else said


def _failure(
    what: str, status: str, token: str, events: Iterator[dict[str, Any]]
) -> EventonceError:
    """Return the error of a failed deployment: each resource with CloudFormation's reason."""
    reasons = [
        f"{it['LogicalResourceId']} ({it['ResourceType']}): {it.get('ResourceStatusReason', '')}"
        for it in events
        if it.get("ClientRequestToken") == token
        and it["ResourceStatus"].endswith("_FAILED")
        and "cancelled" not in it.get("ResourceStatusReason", "")
    ]
    said = "\n  ".join(reversed(reasons)) or "CloudFormation gave no reason"
    ended = "all of it was rolled back" if status in _TAKEN_BACK else f"the stack is in {status}"
    return EventonceError(f"{what}: the deployment failed, {ended}:\n  {said}\n{_hint(said)}")


def _hint(reason: str) -> str:
    # The second is AWS' answer if it finds the resource before anything is deployed.
    if "already exist" in reason or "ResourceExistenceCheck" in reason:
        return (
            "Choose another --name, import the existing resource into the stack (aws "
            "cloudformation create-change-set --change-set-type IMPORT), or name an existing table "
            "with --parameter TableName= --parameter TableArn=ARN."
        )
    if "AccessDenied" in reason or "not authorized" in reason:
        return "Grant the policy that `eventonce infra iam --role apply` prints."
    return "Correct this and run the command again."


def _creates_bus(events: Any, topology: Topology, there: Stack | None) -> str:
    """Return whether the stack creates the bus: a bus that the stack created stays part of it; any
    other existing bus is only used."""
    held = _parameters(there or {})
    if held.get("BusName") == topology.bus:
        return held.get("CreateBus", "no")
    if topology.bus == DEFAULT_BUS:
        return "no"
    try:
        events.describe_event_bus(Name=topology.bus)
    except ClientError as error:
        if faults.code_of(error) != "ResourceNotFoundException":
            raise
        return "partner" if topology.bus.startswith(PARTNER_PREFIX) else "yes"
    return "no"


def _parameters(stack: Stack) -> dict[str, str]:
    return {it["ParameterKey"]: it["ParameterValue"] for it in stack.get("Parameters", ())}


def _stack(cloudformation: Any, name: str) -> Stack | None:
    try:
        (found,) = cloudformation.describe_stacks(StackName=name)["Stacks"]
    except ClientError as error:
        if "does not exist" in str(error):
            return None
        raise
    return dict(found)


def _wait(client: Any, waiter: str, **asked: str) -> None:
    config = {"Delay": POLL_INTERVAL, "MaxAttempts": MOST_POLLS}
    client.get_waiter(waiter).wait(**asked, WaiterConfig=config)


@contextmanager
def _clients(infra: Infra, what: str) -> Iterator[Callable[[str], Any]]:
    """Yield a function from a service to its client; turn its errors into ours."""
    limits: dict[str, Any] = {"read_timeout": READ_TIMEOUT, "attempts": REQUEST_ATTEMPTS}
    try:
        with ExitStack() as opened:
            yield lambda name: opened.enter_context(closing(connect(name, infra.access, **limits)))
    except NoRegionError as error:
        raise ConfigError(
            "infra: no region is named. Use --region, or region in [infra], or set AWS_REGION"
        ) from error
    except ClientError as error:
        raise _explained(error, what) from error
    except (BotoCoreError, OSError, ValueError) as error:
        raise faults.explain(error, what) from error


def _explained(error: ClientError, what: str) -> EventonceError:
    code, message = faults.code_of(error), error.response["Error"].get("Message", "")
    if code in _AT_ONCE or "_IN_PROGRESS state" in message:
        return SourceUnavailable(
            f"{what}: {message}. Somebody else is changing it at this moment; run the command "
            f"again afterwards."
        )
    if code == "ValidationError":
        return ConfigError(f"{what}: {message}")
    return faults.explain(error, what)
