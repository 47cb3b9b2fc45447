"""The questions to AWS: every fact is asked for once, and nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from eventonce.aws.limits import LAMBDA_ATTEMPTS, SQS_BATCH_BYTES
from eventonce.aws.sessions import Access
from eventonce.aws.sqs import Address
from eventonce.clock import wall_clock
from eventonce.doctor.asking import Answer, Asked
from eventonce.doctor.checks import ahead_of
from eventonce.doctor.facts import (
    DEFAULT_RETRIES,
    INVOKE_AGE,
    RETRY_AGE,
    AsyncFacts,
    BusTarget,
    Denied,
    Facts,
    FunctionFacts,
    Identity,
    QueueFacts,
    SourceMapping,
)
from eventonce.infra import iam
from eventonce.infra.targets import DEFAULT_BUS, Place
from eventonce.infra.topology import Topology, absent_partner

DELIVERING_STATES: Final = frozenset(("Enabled", "Enabling", "Creating", "Updating"))
"""The states of an event source mapping that delivers messages, or soon will."""


class Subject(msgspec.Struct, frozen=True):
    """The parts of a set-up that are looked at."""

    access: Access
    topology: Topology
    queue: Address | None = None
    letters: Address | None = None
    functions: Sequence[str] = ()
    buses: Sequence[str] = ()
    """The only buses to look at; empty for all of the account."""


def look(subject: Subject) -> Facts:
    """Return the facts about the subject."""
    asked = Asked(subject.access)
    with closing(asked):
        sent = wall_clock()
        identity, answer = _identity(asked)
        theirs = _date(answer)
        ahead = None if theirs is None else ahead_of(theirs, sent, wall_clock())
        if ahead is None:
            asked.unchecked("account", "this machine's clock: AWS did not say its time")
        queue = _queue(asked, subject.queue, "queue") if subject.queue else None
        arn = queue.arn if queue else _derived(asked, subject, identity)
        dead = _queue_of(asked, queue.dead, "dead-letter queue") if queue and queue.dead else None
        letters = _letters(asked, subject.letters, subject.access) if subject.letters else None
        mappings = _mappings(asked, arn) if arn else []
        names = dict.fromkeys([*subject.functions, *(it.function for it in mappings)])
        found = [_function(asked, name) for name in names]
        functions = [it for it in found if it is not None]
        reached = [*filter(None, [arn]), *(it.arn for it in functions)]
        reached += _topics(asked, reached) if reached else []
        buses = _buses(asked, subject) if reached or subject.buses else {}
        targets = [it for bus in buses for to in reached for it in _targets(asked, bus, to)]
        targets = [_placed(asked, it, buses) for it in targets]
        if (subject.queue or subject.functions) and not targets:
            asked.unchecked("buses", "how events come in: no rule that was seen brings them")
        kept = dict.fromkeys(it.dead for it in targets if it.dead)
        undelivered = [_queue_of(asked, it, "queue for undelivered events") for it in kept]
        for given_up in _destinations(functions, targets, identity):
            # Asked for its finding alone: the queue may not exist.
            _queue_of(asked, given_up, "queue for events that Lambda gives up")
        principals, denied = _rights(asked, subject.topology, identity, functions)
        region = asked.region()
    return Facts(
        identity or Identity("", "", region),
        ahead,
        queue,
        dead,
        letters,
        tuple(targets),
        tuple(mappings),
        tuple(functions),
        tuple(principals),
        tuple(denied),
        tuple(asked.unseen),
        undelivered=tuple(filter(None, undelivered)),
        hidden=subject.queue is not None and queue is None,
    )


def _destinations(
    functions: Sequence[FunctionFacts], targets: Sequence[BusTarget], identity: Identity | None
) -> Iterator[str]:
    """Yield this region's queues for events that Lambda gives up, of functions with a rule."""
    region = identity.region if identity else ""
    reached = {it.to for it in targets}
    found = [it.invoked.dead for it in functions if it.arn in reached and it.invoked]
    yield from dict.fromkeys(it for it in found if it.split(":")[2:4] == ["sqs", region])


def _identity(asked: Asked) -> tuple[Identity | None, Answer]:
    answer = asked.ask(
        "account", "sts", "get_caller_identity", "the account and the principal", has="Arn"
    )
    if not answer:
        return None, answer
    return Identity(answer["Account"], answer["Arn"], asked.region()), answer


def _date(answer: Answer) -> int | None:
    """Return the middle of the second in which AWS answered; None if the answer has no date."""
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return int(parsedate_to_datetime(date).timestamp() * 1000) + 500 if date else None


def _queue(asked: Asked, address: Address, noun: str, **owner: Any) -> QueueFacts | None:
    what = f"the {noun} {address.name}"
    url = address.url or asked.ask(
        "queue", "sqs", "get_queue_url", what, has="QueueUrl", QueueName=address.name, **owner
    ).get("QueueUrl")
    if not url:
        return None
    answer = asked.ask(
        "queue",
        "sqs",
        "get_queue_attributes",
        what,
        has="Attributes",
        QueueUrl=url,
        AttributeNames=["All"],
    )
    told = answer.get("Attributes")
    if not told:
        return None
    redrive = msgspec.json.decode(told.get("RedrivePolicy") or "{}")
    return QueueFacts(
        address.name,
        told["QueueArn"],
        int(told["VisibilityTimeout"]),
        int(told["MessageRetentionPeriod"]),
        redrive.get("deadLetterTargetArn", ""),
        int(redrive.get("maxReceiveCount", 0)),
        told.get("ContentBasedDeduplication", "false") == "true",
        msgspec.json.decode(told.get("Policy") or "{}"),
        told.get("KmsMasterKeyId", ""),
        int(told.get("DelaySeconds", 0)),
        int(told.get("MaximumMessageSize", SQS_BATCH_BYTES)),
    )


def _queue_of(asked: Asked, arn: str, noun: str) -> QueueFacts | None:
    *_, account, name = arn.split(":")
    return _queue(asked, Address(name), noun, QueueOwnerAWSAccountId=account)


def _letters(asked: Asked, address: Address, access: Access) -> QueueFacts | None:
    """Return the facts of the queue for dead letters, in its own region if its URI has one."""
    with closing(Asked(address.access.over(access))) as there:
        # Unusable credentials are reported once, unless this queue has its own.
        there.unusable = asked.unusable and not address.access.profile
        queue = _queue(there, address, "queue for dead letters")
    asked.unseen += there.unseen
    return queue


def _derived(asked: Asked, subject: Subject, identity: Identity | None) -> str:
    """Return the ARN of a queue whose attributes were not seen; empty if the queue is missing."""
    missing = any(area == "queue" and it.missing for area, it in asked.unseen)
    if subject.queue is None or missing:
        return ""
    if identity is None:
        what = f"the functions that receive from the queue {subject.queue.name}"
        asked.unchecked("function", f"{what}: its account is not known")
        return ""
    account = subject.queue.account or identity.account
    return Place(identity.region, account).queue(subject.queue.name)


def _mappings(asked: Asked, arn: str) -> list[SourceMapping]:
    found = asked.pages(
        "function",
        "lambda",
        "list_event_source_mappings",
        "EventSourceMappings",
        f"the functions that receive from {arn}",
        EventSourceArn=arn,
    )
    return [
        SourceMapping(
            it["UUID"],
            _function_name(it["FunctionArn"]),
            it.get("State", "Enabled") in DELIVERING_STATES,
            "ReportBatchItemFailures" in (it.get("FunctionResponseTypes") or ()),
            _filters(it),
            "" if it.get("FilterCriteria") else it.get("KMSKeyArn") or "",
        )
        for it in found
    ]


def _filters(mapping: Answer) -> tuple[dict[str, Any], ...]:
    told = (mapping.get("FilterCriteria") or {}).get("Filters") or ()
    return tuple(msgspec.json.decode(it.get("Pattern") or "{}") for it in told)


def _function_name(arn: str) -> str:
    """Return the function's name, with its alias or version if the ARN has one."""
    return arn.partition(":function:")[2] or arn


def _function(asked: Asked, name: str) -> FunctionFacts | None:
    what = f"the function {name}"
    told = asked.ask(
        "function",
        "lambda",
        "get_function_configuration",
        what,
        has="FunctionArn",
        FunctionName=name,
    )
    if not told:
        return None
    reserved = asked.ask(
        "function",
        "lambda",
        "get_function_concurrency",
        f"the concurrency of {what}",
        FunctionName=told["FunctionName"],
    )
    return FunctionFacts(
        name,
        told["FunctionArn"],
        int(told["Timeout"]),
        reserved.get("ReservedConcurrentExecutions"),
        told.get("Role", ""),
        _invoked(asked, name, told),
    )


def _invoked(asked: Asked, name: str, function: Answer) -> AsyncFacts | None:
    told = asked.ask(
        "function",
        "lambda",
        "get_function_event_invoke_config",
        f"the asynchronous invocations of the function {name}",
        has="FunctionArn",
        # Without a setting that differs from the defaults, AWS answers that there is none.
        absent={"FunctionArn": function["FunctionArn"]},
        FunctionName=name,
    )
    if not told:
        return None
    retries = told.get("MaximumRetryAttempts")
    failed = (told.get("DestinationConfig") or {}).get("OnFailure") or {}
    dead = function.get("DeadLetterConfig") or {}
    return AsyncFacts(
        LAMBDA_ATTEMPTS if retries is None else 1 + retries,
        told.get("MaximumEventAgeInSeconds") or INVOKE_AGE,
        failed.get("Destination") or dead.get("TargetArn") or "",
    )


def _topics(asked: Asked, reached: Sequence[str]) -> list[str]:
    """Return the topics to which one of these ARNs subscribes."""
    what = "the topics that bring their messages to the queue or a function"
    found = asked.pages("buses", "sns", "list_subscriptions", "Subscriptions", what)
    # A subscription that is not confirmed has no ARN yet, and delivers nothing.
    confirmed = [it for it in found if it.get("SubscriptionArn", "").startswith("arn:")]
    return [*dict.fromkeys(it["TopicArn"] for it in confirmed if it.get("Endpoint") in reached)]


def _targets(asked: Asked, bus: str, to: str) -> Iterator[BusTarget]:
    """Yield the targets with this ARN of the rules of this bus."""
    place: Answer = {"EventBusName": bus}
    what = f"the rules of bus {bus}"
    names = asked.pages(
        "buses", "events", "list_rule_names_by_target", "RuleNames", what, TargetArn=to, **place
    )
    for name in names:
        rule = asked.ask("buses", "events", "describe_rule", what, has="Arn", Name=name, **place)
        # A rule without a pattern is a schedule.
        if not rule.get("EventPattern"):
            continue
        targets = asked.pages(
            "buses", "events", "list_targets_by_rule", "Targets", what, Rule=name, **place
        )
        yield from (_target(bus, rule, it) for it in targets if it["Arn"] == to)


def _buses(asked: Asked, subject: Subject) -> dict[str, Answer]:
    """Return the buses by name; the answer about a bus is empty if it was not listed."""
    unseen = len(asked.unseen)
    found = asked.pages("buses", "events", "list_event_buses", "EventBuses", "the list of buses")
    named = {it["Name"]: it for it in found}
    if not subject.buses:
        return named or {DEFAULT_BUS: {}, subject.topology.bus: {}}
    seen = unseen == len(asked.unseen)
    # A bus that is named by its ARN may belong to another account.
    gone = [it for it in subject.buses if seen and it not in named and ":" not in it]
    for name in gone:
        asked.missing("buses", f"the bus {name}")
    return {name: {} for name in subject.buses if name not in gone}


def _placed(asked: Asked, target: BusTarget, buses: dict[str, Answer]) -> BusTarget:
    """Return the target, with whether the partner's events that it needs reach its bus."""
    if not absent_partner(target.bus, target.pattern):
        return target
    told, unseen = buses[target.bus], len(asked.unseen)
    found: list[str] = []
    if told:
        what = f"the rules that forward events to bus {target.bus}"
        operation = ("buses", "events", "list_rule_names_by_target", "RuleNames", what)
        for bus in buses:
            if bus != target.bus:
                found += asked.pages(*operation, TargetArn=told["Arn"], EventBusName=bus)
    # Without the list of buses, or a permission, some rules were not seen; and if the bus has a
    # policy, another account may put events on it.
    sure = bool(told) and not told.get("Policy") and unseen == len(asked.unseen)
    return msgspec.structs.replace(target, forwarded=bool(found) or (False if sure else None))


def _target(bus: str, rule: Answer, target: Answer) -> BusTarget:
    retry = target.get("RetryPolicy") or {}
    transformer = target.get("InputTransformer") or {}
    return BusTarget(
        bus,
        rule["Name"],
        rule["Arn"],
        target["Id"],
        target["Arn"],
        msgspec.json.decode(rule["EventPattern"]),
        rule.get("State", "ENABLED") != "DISABLED",
        retry.get("MaximumRetryAttempts", DEFAULT_RETRIES),
        retry.get("MaximumEventAgeInSeconds", RETRY_AGE),
        (target.get("DeadLetterConfig") or {}).get("Arn", ""),
        target.get("Input") or "",
        target.get("InputPath") or "",
        transformer.get("InputTemplate", ""),
        transformer.get("InputPathsMap") or {},
        (target.get("SqsParameters") or {}).get("MessageGroupId", ""),
        target.get("RoleArn") or "",
    )


def _rights(
    asked: Asked, topology: Topology, identity: Identity | None, functions: Sequence[FunctionFacts]
) -> tuple[list[str], list[Denied]]:
    """Return the principals whose rights could be simulated, and the rights that they lack. The
    principals are the roles of the functions; without functions, the caller, as the worker."""
    role: iam.Role = "lambda" if functions else "worker"
    principals = [it.role for it in functions if it.role]
    if not functions and identity is not None:
        principals = [_principal(identity.principal)]
    if identity is None:
        asked.unchecked("rights", "the rights of the consumer: its account is not known")
        return [], []
    place = Place(identity.region, identity.account)
    needed = [it for it in iam.policy(role, topology, place)["Statement"] if it["Sid"] != "Logs"]
    simulated: list[str] = []
    denied: list[Denied] = []
    for principal in dict.fromkeys(principals):
        if principal.endswith(":root"):
            what = "the rights of a worker: the caller is the account's root user, whose rights no "
            asked.unchecked("rights", what + "policy describes. Ask as the worker's own role")
            continue
        answers = [_simulated(asked, principal, statement) for statement in needed]
        if all(answers):
            simulated.append(principal)
        denied += [
            Denied(principal, it["EvalActionName"], it["EvalResourceName"])
            for answer in answers
            for it in answer.get("EvaluationResults", ())
            if it["EvalDecision"] != "allowed"
        ]
    return simulated, denied


def _simulated(asked: Asked, principal: str, statement: Answer) -> Answer:
    resource = statement["Resource"]
    return asked.ask(
        "rights",
        "iam",
        "simulate_principal_policy",
        f"the rights of {principal} for {statement['Sid']}",
        PolicySourceArn=principal,
        ActionNames=statement["Action"],
        ResourceArns=resource if isinstance(resource, list) else [resource],
    )


def _principal(arn: str) -> str:
    """Return the ARN of the role of a session; the ARN of a user stays the same."""
    parts = arn.split(":")
    if parts[2] != "sts" or not parts[5].startswith("assumed-role/"):
        return arn
    return ":".join([*parts[:2], "iam", "", parts[4], f"role/{parts[5].split('/')[1]}"])
