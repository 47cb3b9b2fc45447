"""The topology: the names of all resources, and the events that they receive, from the table
`[infra]`.

`template` turns the topology into the parameters of the two templates, `iam` into policies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from eventonce import presets
from eventonce.aws.eventbridge import RESERVED
from eventonce.aws.sessions import Access
from eventonce.aws.sqs import Address, parse, same
from eventonce.core.masking import scheme_of
from eventonce.errors import ConfigError
from eventonce.infra import targets
from eventonce.infra.targets import ANY, DEFAULT_BUS, Target
from eventonce.stores import adapter_of

OWN_NAME: Final = "eventonce"
PARTNER_PREFIX: Final = "aws.partner/"
"""The beginning of the name of a partner's bus, which is the name of its event source."""

FIFO: Final = ".fifo"

VISIBILITY_TIMEOUTS: Final = 6
"""The visibility timeout in timeouts of the function, as Lambda recommends: a batch that is retried
while the function is throttled must not become visible during a run."""

_CALLED: Final = re.compile(r"[A-Za-z0-9_-]{1,55}")
"""The name; a role has at most 64 characters, and the function's role ends with `-function`."""

_QUEUE: Final = re.compile(r"[A-Za-z0-9_-]{1,68}(\.fifo)?")
"""The queue; its name has at most 80 characters, and one more queue ends with `-undelivered`."""

_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+/?")
_CODE: Final = re.compile(r"s3://[A-Za-z0-9.-]+/[A-Za-z0-9!_.*'()/-]+")
_RULE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_BUS: Final = re.compile(r"[A-Za-z0-9_./-]{1,256}")


class Infra(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[infra]`; defaults of its fields come from the rest of the file."""

    name: str = ""
    """The name that the names of all resources begin with; the consumer's name, if empty."""
    bus: str = DEFAULT_BUS
    pattern: dict[str, Any] = {}
    """The rule's whole event pattern."""
    source: str = ""
    """The beginning of the events' source, instead of a pattern."""
    queue: str = ""
    rule: str = ""
    fifo: bool = False
    timeout: int = 60
    """Seconds that a run of the function may take; the queue's visibility is six times as long."""
    receives: int = 100
    """Receives of a message before SQS gives it up. The consumer counts its own attempts and keeps
    dead letters, so this is for messages that never reach it: with six minutes of visibility, a
    store may be unavailable for ten hours."""
    region: str = ""
    account: str = ""
    """The account's number; `apply` asks AWS for it."""
    endpoint: str = ""
    profile: str = ""
    code: str = ""
    """The place of the function's code, `s3://BUCKET/KEY`, for `apply`; a worker needs none."""
    parameters: dict[str, str] = {}
    """Parameters of the template by their names; they win over those of the topology."""

    @property
    def access(self) -> Access:
        """The region, endpoint and profile."""
        return Access(self.region or None, self.endpoint or None, self.profile or None)


class Table(msgspec.Struct, frozen=True):
    """The store's table."""

    name: str
    key: str = ""
    expiry: str = ""
    """The names of the attributes `key` and `expiry`; empty for the store's defaults."""
    region: str = ""
    elsewhere: bool = False
    """Whether the table has another endpoint than the other resources."""

    def is_in(self, region: str) -> bool:
        """Whether the table is in this region, together with the other resources."""
        return not self.elsewhere and (region == ANY or self.region in ("", region))


class Topology(msgspec.Struct, frozen=True):
    """All names and numbers of the resources."""

    name: str
    """The name that the names of all resources begin with."""
    consumer: str
    """The consumer's own name, which is part of every key."""
    bus: str
    pattern: dict[str, Any]
    rule: str
    queue: str
    timeout: int
    receives: int
    table: Table | None = None
    """The table of the store; None if the store is not DynamoDB."""
    embedded: str = ""
    """The scheme of a store that only one machine can use, such as a file; or empty."""
    letters: Target | None = None
    """The queue for dead letters; None if the store keeps them."""
    drops_letters: bool = False
    """Whether the consumer itself drops old dead letters of the table (`keep_letters`)."""
    sends: tuple[Target, ...] = ()
    """Queues that sinks send to."""
    puts: tuple[Target, ...] = ()
    """Buses that sinks put events on."""

    @property
    def fifo(self) -> bool:
        """Whether the queue is a FIFO queue."""
        return self.queue.endswith(FIFO)

    @property
    def dead(self) -> str:
        """The queue for messages that were received too often."""
        return self.queue.removesuffix(FIFO) + "-dead" + (FIFO if self.fifo else "")

    @property
    def undelivered(self) -> str:
        """The queue for events that EventBridge could not deliver; it must be a standard queue."""
        return self.queue.removesuffix(FIFO) + "-undelivered"

    @property
    def capture(self) -> str:
        """The name of the stack around a capture."""
        return f"{self.name}-capture"

    @property
    def capture_rule(self) -> str:
        """The rule that copies events for a capture; its name has at most 64 characters."""
        return f"{self.rule[:56]}-capture"

    @property
    def capture_queue(self) -> str:
        """The queue of a capture: a standard queue, to show the real order of arrival."""
        return f"{self.queue.removesuffix(FIFO)}-capture"

    @property
    def capture_log_group(self) -> str:
        """The log group of a capture."""
        return f"/aws/events/{self.capture}"

    @property
    def letter_queue(self) -> str:
        """The queue for dead letters, if the stack creates it; empty if it is another queue of the
        stack, or in another region or account."""
        letters = self.letters
        if letters is None or letters.region or letters.account:
            return ""
        return "" if letters.name in (self.queue, self.dead, self.undelivered) else letters.name

    @property
    def theirs(self) -> bool:
        """Whether only AWS or a partner can put these events on the bus."""
        found = _beginnings(self.pattern)
        reserved = bool(found) and all(one.startswith(RESERVED) for one in found)
        return reserved or self.bus.startswith(PARTNER_PREFIX)

    @property
    def warnings(self) -> list[str]:
        """The steps that are left to the user."""
        found = []
        partner = absent_partner(self.bus, self.pattern)
        if partner:
            found.append(
                f"the rule {self.rule} on the bus {self.bus} matches no event of {partner}: "
                f"{partner_remedy(self.bus, partner)}"
            )
        letters = self.letters
        if letters is not None and (letters.region or letters.account):
            found.append(
                f"the queue {letters.name} for dead letters is in another region or account: "
                f"create it there"
            )
        return found

    @property
    def visibility(self) -> int:
        """Seconds until a message that was received and not deleted is visible again."""
        return VISIBILITY_TIMEOUTS * self.timeout


def absent_partner(bus: str, pattern: dict[str, Any]) -> str:
    """Return the partner if this pattern matches only its events, and none of them arrives on this
    bus unless it is forwarded; otherwise empty."""
    found = _beginnings(pattern)
    partners = bool(found) and all(one.startswith(PARTNER_PREFIX) for one in found)
    if not partners or bus.startswith(PARTNER_PREFIX):
        return ""
    return "/".join(found[0].split("/")[:2])


def partner_remedy(bus: str, partner: str) -> str:
    """Return why no event of this partner is on this bus, and what to do."""
    return (
        f"those arrive only on the bus that has the name of their source. Forward them to {bus}, "
        f'or write that bus into [infra], as in bus = "{partner}/…"; '
        f"`aws events list-event-sources --name-prefix {partner}` prints its name"
    )


def topology_of(
    infra: Infra,
    *,
    name: str = "",
    store: str = "",
    rules: Sequence[presets.Spec] = (),
    letters: str = "",
    keep_letters: float | str = "",
    sinks: Sequence[str] = (),
    matching: bool = True,
) -> Topology:
    """Return the topology of a table `[infra]` and the other fields of the file.

    With `matching`, the rule's pattern is needed: ConfigError if there is none.
    """
    wrong = dict(faults(infra, name))
    if wrong:
        raise ConfigError("\n".join(wrong.values()))
    called = _called(infra, name)
    queue = _queue(infra, called)
    ours = Address(queue, access=Access(infra.region or None, infra.endpoint or None))
    if letters and same(parse(letters), ours):
        raise ConfigError(
            f"infra: dead letters must not go to {letters}, the queue that events come from: each "
            f"would be received again. Name another queue, or none: then the store keeps them"
        )
    table = _table(store or f"dynamodb://{called}", infra)
    return Topology(
        name=called,
        consumer=name or called,
        bus=infra.bus,
        pattern=infra.pattern or _pattern(infra, rules, matching=matching),
        rule=infra.rule or called,
        queue=queue,
        timeout=infra.timeout,
        receives=infra.receives,
        table=table,
        embedded=store.partition(":")[0] if store and adapter_of(store).extra is None else "",
        letters=_without_region(targets.queue(letters), infra) if letters else None,
        drops_letters=table is not None and keep_letters != "",
        sends=tuple(targets.queue(sink) for sink in sinks if sink.startswith("sqs:")),
        puts=tuple(targets.bus(sink) for sink in sinks if sink.startswith("events:")),
    )


def placed(infra: Infra, workers: str) -> Infra:
    """Return the table with the name of its queue, or of the worker's queue if it has none. A queue
    may be given as a URI, as for `run` and `send`: the region, endpoint and profile of that URI
    win; those of the worker's queue are defaults."""
    is_uri = "/" in infra.queue
    if not is_uri and (infra.queue or not workers):
        return infra
    address = parse(infra.queue if is_uri else workers)
    place = {
        field: value
        for field, value in msgspec.structs.asdict(address.access).items()
        if value and (is_uri or not getattr(infra, field))
    }
    return msgspec.structs.replace(infra, queue=address.name, **place)


def faults(infra: Infra, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the wrong fields of the table, each with its message. `name` is the consumer's name.
    Names that are made from a right name are right."""
    called, queue, rule = _called(infra, name), _queue(infra, OWN_NAME), infra.rule or OWN_NAME
    names = (
        ("name", called, _CALLED, "1 to 55 letters, digits, '-' and '_'; [infra] may have another"),
        ("queue", queue, _QUEUE, "1 to 68 letters, digits, '-' and '_', maybe with .fifo"),
        ("rule", rule, _RULE, "1 to 64 letters, digits, '.', '-' and '_'"),
        ("bus", infra.bus, _BUS, "a bus' name, such as default, and not its ARN"),
    )
    for field, text, allowed, expected in names:
        if not allowed.fullmatch(text):
            yield field, f"infra: the {field} cannot be {text!r}: it must be {expected}"
    if infra.endpoint and not _ENDPOINT.fullmatch(infra.endpoint):
        # The endpoint is not repeated: a text before an @ may be a secret.
        said = "must be like http://127.0.0.1:4566, with no user or password in it"
        yield "endpoint", f"infra: the endpoint {said}"
    if infra.code and not _CODE.fullmatch(infra.code):
        said = f"{infra.code!r}: `aws s3 cp` puts the function's zip file there"
        yield "code", f"infra: code must be s3://BUCKET/KEY, not {said}"
    if not 1 <= infra.timeout <= 900:
        yield "timeout", f"infra: timeout must be 1 to 900 seconds, not {infra.timeout}"
    if not 1 <= infra.receives <= 1000:
        yield "receives", f"infra: receives must be 1 to 1000, not {infra.receives}"


def _called(infra: Infra, name: str) -> str:
    return infra.name or name or OWN_NAME


def _queue(infra: Infra, called: str) -> str:
    queue = infra.queue or called
    return queue if queue.endswith(FIFO) or not infra.fifo else queue + FIFO


def _without_region(target: Target, infra: Infra) -> Target:
    """Return the target without its region if that is the region of all resources."""
    here = target.region == infra.region
    return msgspec.structs.replace(target, region="") if here else target


def _pattern(infra: Infra, rules: Sequence[presets.Spec], *, matching: bool) -> dict[str, Any]:
    """Return the pattern of the rule, if none was given. ConfigError if no source is known: a rule
    without a pattern would take every event of the account."""
    sources = _sources(infra, rules)
    if matching and not sources:
        raise ConfigError(
            "infra: no events are named. Give the beginning of their source (--source "
            "aws.partner/genesys.com), a whole event pattern (--pattern), or rules that all match "
            "a source, such as the preset genesys"
        )
    return {"source": sources} if sources else {}


def _sources(infra: Infra, rules: Sequence[presets.Spec]) -> list[Any]:
    """Return matchers of the events' sources; none if no source is named."""
    if infra.source:
        return [{"prefix": infra.source}]
    if infra.bus.startswith(PARTNER_PREFIX):
        return [{"prefix": infra.bus}]
    known = [_known(spec) for spec in rules]
    if not all(known):
        return []
    return [_matcher(glob) for glob in dict.fromkeys(glob for globs in known for glob in globs)]


def _known(spec: presets.Spec) -> list[str]:
    """Return the sources that a preset or a rule matches; none for `auto`, which matches any."""
    if spec == presets.AUTO:
        return []
    return [glob for rule in presets.resolve(spec) for glob in rule.match.source]


def _matcher(glob: str) -> Any:
    literal, star, rest = glob.partition("*")
    if not star:
        return glob
    return {"wildcard": glob} if rest else {"prefix": literal}


def _beginnings(pattern: dict[str, Any]) -> list[str]:
    """Return the beginning of each source in the pattern; an empty text is any beginning."""
    sources = pattern.get("source")
    return [_beginning(matcher) for matcher in sources] if isinstance(sources, list) else []


def _beginning(matcher: Any) -> str:
    if isinstance(matcher, dict):
        matcher = matcher.get("prefix", matcher.get("wildcard"))
    return matcher.partition("*")[0] if isinstance(matcher, str) else ""


def _table(store: str, infra: Infra) -> Table | None:
    if scheme_of(store) != "dynamodb":
        return None
    # Slow to import; and every command that reads a configuration imports this module.
    from eventonce.stores.dynamodb.codec import EXPIRY, KEY  # noqa: PLC0415
    from eventonce.stores.dynamodb.uri import read  # noqa: PLC0415

    address = read(store)
    options = address.options
    return Table(
        address.table,
        "" if options.key == KEY else options.key,
        "" if options.expiry == EXPIRY else options.expiry,
        options.region or infra.region,
        elsewhere=(options.endpoint or infra.endpoint) != infra.endpoint,
    )
