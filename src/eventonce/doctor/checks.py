"""The checks: functions from the facts of a set-up and the settings of its file to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from eventonce.aws.limits import LAMBDA_ATTEMPTS
from eventonce.core.ports import Finding, judged
from eventonce.doctor.buses import admitted, encrypted, matching, overlapping, retried, shaped
from eventonce.doctor.facts import (
    INVOKE_AGE,
    RETRY_AGE,
    AsyncFacts,
    Facts,
    FileFacts,
    FunctionFacts,
    HistoryFacts,
    SourceMapping,
)
from eventonce.doctor.patterns import covers
from eventonce.infra.topology import VISIBILITY_TIMEOUTS
from eventonce.rules import Rule
from eventonce.rules.instants import duration_text

CLOCK_SKEW: Final = 5_000
"""The most milliseconds that a clock may be off: AWS gives its time in seconds."""

RETRY_PAUSE: Final = 60
"""Seconds after which Lambda first retries an asynchronous invocation."""
RECEIVES: Final = 100
"""The maxReceiveCount that `infra apply` sets: the consumer counts attempts, not SQS."""
RETENTION: Final = 14 * 86_400
"""The longest retention of a queue, in seconds."""

LONGEST_OUTAGE: Final = 4 * 86_400
"""The fewest seconds that a queue should keep its messages, which is the default of SQS: a weekend
and the day on which somebody notices."""
LONGEST_DELAY: Final = 60
"""The most seconds that a queue may delay a message without a fault."""
LARGEST_EVENT: Final = 256 * 1024
"""Bytes of an event that every EventBridge takes."""

GENESYS: Final = ("v2.", "aws.partner/genesys", "genesys.", "genesys:")
"""The beginnings of the types and sources of Genesys' events, and of the rules of its presets."""
STRIPE: Final = ("aws.partner/stripe", "stripe")
"""The same beginnings for Stripe."""

DELETION_DELAY: Final = 7_200_000
"""Milliseconds for which a decision or a dead letter may be kept too long: consumers delete old
ones once a minute or an hour, and `sweep` runs about every hour."""
HISTORY_SLACK: Final = 0.1
"""The part of `most` by which a history may be larger: old decisions are deleted at intervals."""

RESENDING: Final = {GENESYS: 4 * 86_400, STRIPE: 3 * 86_400}
"""The most seconds after which a source sends an event again; for other sources the time is shorter
than EventBridge's own, or not known."""


Check = Callable[[Facts, FileFacts], Iterator[Finding]]


def findings(facts: Facts, file: FileFacts) -> list[tuple[str, Finding]]:
    """Return every finding, with its area."""
    found = [(area, it) for area, check in CHECKS for it in check(facts, file)]
    return sorted([*facts.unseen, *found], key=lambda it: AREAS.index(it[0]))


def clock(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Compare this machine's clock with AWS'."""
    if facts.ahead is not None:
        yield clock_finding("AWS", facts.ahead)


def ahead_of(theirs: int, before: int, after: int) -> int:
    """Return the least milliseconds that this machine's clock is ahead of another, whose time was
    read between `before` and `after` of this clock; negative if it is behind."""
    return max(0, before - theirs) + min(0, after - theirs)


def clock_finding(other: str, ahead: int) -> Finding:
    """Return the finding for a clock of this machine that is so many milliseconds ahead."""
    if abs(ahead) <= CLOCK_SKEW:
        return Finding(f"this machine's clock agrees with that of {other}")
    off = f"{abs(ahead) / 1000:.0f} s {'ahead of' if ahead > 0 else 'behind'}"
    return Finding(
        f"this machine's clock is {off} that of {other}",
        "switch on time synchronisation (NTP): AWS refuses requests that are minutes off, and ages "
        "of events are counted by this clock",
    )


def history(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Check whether the history can be read and written, is bounded, and has known secrets."""
    one = facts.history
    if one is None:
        return
    if one.fault:
        yield Finding(f"the history {one.uri} cannot be used", one.fault)
        return
    yield Finding(
        f"the history {one.uri} answers, and its tables are those of this version"
        if one.begun
        else f"the history {one.uri} is not begun yet: `run` and `serve` begin it"
    )
    can = "cannot" if one.refused else "can"
    yield judged(not one.refused, f"a decision {can} be written to the history", one.refused)
    if not one.begun:
        return
    yield from _bounded(one)
    yield judged(
        not one.hidden,
        f"it has {f'{one.hidden:,}' if one.hidden else 'no'} digests under a secret that the file "
        "does not name",
        "add the secret to `secrets`, after the first: until then these decisions are not found by "
        "an id, and `forget` proves nothing",
    )


def _bounded(one: HistoryFacts) -> Iterator[Finding]:
    keep = duration_text(one.keep)
    sweep = (
        "run eventonce sweep every hour, or let `run` and `serve` have the right to delete: "
        "nothing drops what is too old or too much now"
    )
    old = one.age > one.keep + DELETION_DELAY
    yield judged(not old, f"{'a' if old else 'no'} decision is older than {keep} (keep)", sweep)
    large = one.span > one.most * (1 + HISTORY_SLACK)
    said = f"more decisions than {one.most:,} (most)"
    yield judged(not large, f"it has {'' if large else 'no '}{said}", sweep)


def redrive(facts: Facts, file: FileFacts) -> Iterator[Finding]:
    """Check the redrive policy, and compare its count with the attempts of the rules."""
    queue = facts.queue
    if queue is None:
        return
    if not queue.dead:
        yield Finding(
            f"the queue {queue.name} has no redrive policy",
            f"give it a dead-letter queue with maxReceiveCount {RECEIVES}: a message that never "
            f"reaches the consumer is deleted when the queue's retention ends. "
            f"`eventonce infra apply` creates one",
        )
        return
    most = max(file.rules, key=lambda rule: rule.attempts)
    yield judged(
        queue.receives > most.attempts,
        f"SQS gives a message up after {queue.receives} receives, the rule {most.name} after "
        f"{most.attempts} attempts",
        f"set maxReceiveCount to {max(RECEIVES, 2 * most.attempts)}: now SQS takes a message "
        f"away before its attempts are used up, without a dead letter that says why",
    )


def retained(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Check the queue's retention, its delay, and its largest message."""
    queue = facts.queue
    if queue is None:
        return
    yield judged(
        queue.retention >= LONGEST_OUTAGE,
        f"the queue {queue.name} keeps a message for {_days(queue.retention)}",
        f"set its MessageRetentionPeriod to {LONGEST_OUTAGE} or more: SQS deletes older messages, "
        f"and all events of a longer outage, such as one over a weekend, are lost",
    )
    yield judged(
        queue.delay <= LONGEST_DELAY,
        f"the queue {queue.name} holds every message back for {queue.delay} s",
        "set its DelaySeconds to 0: every event comes so much later",
    )
    yield judged(
        queue.largest >= LARGEST_EVENT,
        f"the queue {queue.name} takes messages of up to {queue.largest} bytes",
        f"set its MaximumMessageSize to {LARGEST_EVENT} or more: SQS refuses a larger event, and "
        f"EventBridge takes it",
    )


def kept(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Check how long the queues of dead letters keep them."""
    for one in (facts.dead, facts.letters):
        if one is not None:
            yield judged(
                one.retention >= RETENTION,
                f"the queue {one.name} keeps dead letters for {_days(one.retention)}",
                f"set its MessageRetentionPeriod to {RETENTION}, the most that SQS offers: its "
                f"messages are deleted then, and their time in the first queue counts",
            )


def visibility(facts: Facts, file: FileFacts) -> Iterator[Finding]:
    """Compare the visibility timeout with the leases and with the function's timeout."""
    queue = facts.queue
    if queue is None:
        return
    if not facts.mappings:
        longest = max(file.rules, key=lambda rule: rule.lease)
        lease = longest.lease / 1000
        yield judged(
            file.visibility >= lease,
            f"a worker hides its messages for {file.visibility:g} s, the longest lease is "
            f"{lease:g} s ({longest.name})",
            f'set visibility = "{lease:g}s" in [worker]: the messages of a worker that died '
            f"come back while its leases still run, and are only pushed back",
        )
        return
    outlasting = _outlasting(file)
    if outlasting is not None:
        lease = outlasting.lease / 1000
        yield judged(
            queue.visibility >= lease,
            f"the queue hides a message for {queue.visibility} s, the longest lease of a state is "
            f"{lease:g} s ({outlasting.name})",
            f"set the queue's VisibilityTimeout to {lease:g} or the rule's lease to "
            f"{queue.visibility} s: a retry after a lost run finds the event busy",
        )
    for function in _mapped(facts):
        needed = VISIBILITY_TIMEOUTS * function.timeout
        yield judged(
            queue.visibility >= needed,
            f"the queue hides a message for {queue.visibility} s, the function {function.name} may "
            f"run for {function.timeout} s",
            f"set the queue's VisibilityTimeout to {needed}, six times the function's "
            f"timeout: now a message may be shown again while it is still worked on",
        )


def fifo(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Check the settings of a FIFO queue that EventBridge needs."""
    queue = facts.queue
    if queue is None or not queue.fifo:
        return
    to_queue = [it for it in facts.targets if it.to == queue.arn]
    if to_queue:
        yield judged(
            queue.deduplicates,
            f"the FIFO queue {queue.name} deduplicates by content"
            if queue.deduplicates
            else f"the FIFO queue {queue.name} does not deduplicate by content",
            "set ContentBasedDeduplication: EventBridge names no deduplication id, and SQS "
            "refuses its messages",
        )
    for one in to_queue:
        yield judged(
            one.group != "",
            f"the {one} names {f'the message group {one.group}' if one.group else 'no group'}",
            "set SqsParameters.MessageGroupId of the target: SQS refuses a message without one",
        )


def batches(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Check the event source mappings."""
    for one in facts.mappings:
        name = f"the mapping from the queue to the function {one.function}"
        update = f"aws lambda update-event-source-mapping --uuid {one.id}"
        yield judged(
            one.enabled,
            f"{name} is {'enabled' if one.enabled else 'disabled'}",
            f"{update} --enabled: until then nothing is processed",
        )
        yield judged(
            one.partial,
            f"{name} {'takes' if one.partial else 'does not take'} partial batch responses",
            f"{update} --function-response-types ReportBatchItemFailures: without it a "
            f"function that names failed messages has its whole batch deleted, the failed ones too",
        )
        if one.filter_key:
            yield Finding(
                f"whether {name} has a filter: the key {one.filter_key} hides it", unchecked=True
            )
            continue
        fine = not one.filters or _all_pass(facts, one)
        yield judged(
            fine,
            f"{name} passes every event on" if fine else f"{name} has a filter that loses events",
            f"{update} --filter-criteria '{{}}', and choose events by the patterns of the rules: "
            f"Lambda deletes a message that matches no filter, and nobody is told",
        )


def shared(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Check for several functions that receive from the queue; aliases count as one function."""
    names = {it.function.partition(":")[0] for it in facts.mappings if it.enabled}
    if len(names) > 1:
        yield Finding(
            f"the functions {', '.join(sorted(names))} all receive from the queue",
            "give each function a queue of its own, or delete the mappings of the others (aws "
            "lambda delete-event-source-mapping): each event comes to one of the functions, and "
            "the others never see it",
        )


def functions(facts: Facts, file: FileFacts) -> Iterator[Finding]:
    """Check each function: its timeout against handlers and leases, and its concurrency."""
    slowest = max(file.rules, key=lambda rule: rule.timeout)
    outlasting = _outlasting(file)
    for one in facts.functions:
        allowed = slowest.timeout / 1000
        yield judged(
            allowed < one.timeout,
            f"the function {one.name} may run for {one.timeout} s, "
            + (
                f"a handler for {allowed:g} s ({slowest.name})"
                if allowed
                else "and no rule has a timeout"
            ),
            f"set the function's timeout above {allowed:g} s, or a shorter timeout of the "
            f"rule: Lambda ends the process before the handler's time is up",
        )
        if outlasting is not None and any(it.to == one.arn for it in facts.targets):
            lease, back = outlasting.lease / 1000, one.timeout + RETRY_PAUSE
            yield judged(
                lease <= back,
                f"Lambda retries a lost run of {one.name} {back} s after it began, the longest "
                f"lease of a state is {lease:g} s ({outlasting.name})",
                f"set the rule's lease to {one.timeout} s: the retry finds the event busy, "
                f"and there are only two",
            )
        if one.concurrency is not None:
            yield judged(
                one.concurrency > 0,
                f"the function {one.name} has a reserved concurrency of {one.concurrency}",
                f"nothing runs: aws lambda delete-function-concurrency --function-name {one.name}",
            )


def invoked(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Check each function that a rule invokes: how long Lambda retries, and whether events that
    Lambda gives up are kept."""
    reached = {it.to for it in facts.targets}
    for one in facts.functions:
        if one.arn in reached and one.invoked is not None:
            yield from _invoked(one.name, one.invoked)


def _invoked(name: str, how: AsyncFacts) -> Iterator[Finding]:
    tries = f"{how.attempts} {'attempt' if how.attempts == 1 else 'attempts'}"
    yield judged(
        how.dead != "",
        f"the function {name} keeps an event that Lambda gives up after {tries}"
        if how.dead
        else f"the function {name} has no place for an event that Lambda gives up after {tries}",
        "give it an on-failure destination, a standard queue (DestinationConfig.OnFailure of its "
        "EventInvokeConfig), or let the rule send to a queue: an event whose last attempt "
        "crashes, or finds the store away, is lost",
    )
    yield judged(
        how.age >= INVOKE_AGE,
        f"Lambda tries to invoke the function {name} for {how.age} s",
        f"aws lambda update-function-event-invoke-config --function-name {name} "
        f"--maximum-event-age-in-seconds {INVOKE_AGE}: an event that is throttled, or waits for "
        f"its retry, is given up sooner than Lambda can do",
    )
    if how.attempts < LAMBDA_ATTEMPTS:
        yield Finding(
            f"whether the function {name} knows that Lambda makes {tries} and not "
            f"{LAMBDA_ATTEMPTS}: it needs lambda_handler(consumer, attempts={how.attempts}), or "
            f"the last one keeps no dead letter",
            unchecked=True,
        )


def rights(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Check the rights of the principals that run the consumer."""
    # A principal that lacks a right need not be in `asked_rights`, whose rights are all known.
    for one in facts.denied:
        yield Finding(
            f"{one.principal} may not {one.action} on {one.resource}",
            "grant it what `eventonce infra iam` prints",
        )
    lacking = {it.principal for it in facts.denied}
    for principal in facts.asked_rights:
        if principal not in lacking:
            yield Finding(f"{principal} has the rights that the consumer needs")


def windows(facts: Facts, file: FileFacts) -> Iterator[Finding]:
    """Compare how long rules remember with how late a copy can come."""
    kept = facts.queue.retention if facts.queue else 0
    short: dict[tuple[int, int], list[str]] = {}
    for rule in file.rules:
        late = _horizon(rule) + RETRY_AGE + kept
        if rule.remember < late * 1000:
            short.setdefault((rule.remember, late), []).append(rule.name)
    for (remember, late), names in short.items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Finding(
            f"the rule {names[0]}{others} remembers for {_days(remember / 1000)}, and a copy can "
            f"come {_days(late)} later",
            f'set remember = "{-(-late // 86_400)}d" in [override] or in the rule: a copy that '
            f"comes after the window runs again",
        )
    if facts.hidden:
        yield Finding(
            "how late a copy can come: the retention of the queue was not seen", unchecked=True
        )
    elif not short:
        yield Finding("every rule remembers longer than a copy can be late")


def unknown_patterns(_: Facts, file: FileFacts) -> Iterator[Finding]:
    """Check for patterns that match no known type; all types of Genesys are known."""
    for one in file.patterns:
        if one.pattern.startswith(GENESYS[0]):
            yield Finding(str(one), "correct the pattern: every topic of Genesys is known")
        else:
            yield Finding(f"{one}; this is right for a type of your own", unchecked=True)
    for place in file.unread:
        yield Finding(place, unchecked=True)
    if not file.patterns and not file.unread:
        yield Finding("every pattern matches a known event type")


CHECKS: Final[tuple[tuple[str, Check], ...]] = (
    ("account", clock),
    ("history", history),
    ("queue", redrive),
    ("queue", retained),
    ("queue", kept),
    ("queue", visibility),
    ("queue", fifo),
    ("buses", retried),
    ("buses", admitted),
    ("buses", encrypted),
    ("buses", shaped),
    ("buses", matching),
    ("buses", overlapping),
    ("function", batches),
    ("function", shared),
    ("function", functions),
    ("function", invoked),
    ("rights", rights),
    ("rules", windows),
    ("rules", unknown_patterns),
)
"""Each check with its area. The store is checked in `storage`."""

AREAS: Final = ("account", "store", "history", "queue", "buses", "function", "rights", "rules")
"""The areas in the order of the report."""


def _mapped(facts: Facts) -> list[FunctionFacts]:
    names = {it.function for it in facts.mappings}
    return [it for it in facts.functions if it.name in names]


def _all_pass(facts: Facts, mapping: SourceMapping) -> bool:
    """Whether the filters of this mapping match every event that the rules bring to the queue."""
    brought = [it for it in facts.targets if facts.queue and it.to == facts.queue.arn]
    return bool(brought) and all(
        not one.reshaped and any(covers(it, {"body": one.pattern}) for it in mapping.filters)
        for one in brought
    )


def _outlasting(file: FileFacts) -> Rule | None:
    """Return the rule with the longest lease of a state, which outlasts a killed function. The
    lease of a fact ends with the invocation."""
    states = (rule for rule in file.rules if rule.kind == "state")
    return max(states, key=lambda rule: rule.lease, default=None)


def _horizon(rule: Rule) -> int:
    names = (rule.name, *rule.match.type, *rule.match.source)
    known = (late for those, late in RESENDING.items() if any(it.startswith(those) for it in names))
    return max(known, default=0)


def _days(seconds: float) -> str:
    for unit, size in (("day", 86_400), ("hour", 3_600)):
        if seconds >= size:
            number = seconds / size
            return f"{number:g} {unit}" + "s" * (number != 1)
    return f"{seconds:g} s"
