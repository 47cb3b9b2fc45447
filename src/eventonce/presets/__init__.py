"""The presets: rules as data for the sources we know, found by name.

Each is a TOML file beside this one, read when it is first asked for. The keys of a released version
never change: a new one takes the file's place, and the old stays beside it as `name@1.toml`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from os import PathLike
from typing import Any, Final

import msgspec

from eventonce.errors import ConfigError, unreadable
from eventonce.rules.rule import Match, Rule

Spec = str | PathLike[str] | Rule

AUTO: Final = "auto"

_AUTO_ORDER: Final = (
    "genesys",
    "connect",
    "stripe",
    "shopify",
    "auth0",
    "salesforce",
    "zendesk",
    "cloudevents",
    "cxone",
    "standard-webhooks",
    "relayed",
)
"""Business keys before transport headers: a relay that wraps a Genesys event in a webhook gives it
a new webhook id with every publish."""

_AWS: Final = Match(source=("aws.*",))
"""Sources that no relay can take: EventBridge keeps the names for AWS and its partners."""

_SUFFIX: Final = ".toml"

OVERRIDABLE: Final = (
    "remember",
    "sliding",
    "keep_result",
    "lease",
    "timeout",
    "attempts",
    "missing",
    "verify",
    "on_store_error",
    "on_replay",
    "shadow",
    "also",
)
_OF_FACTS: Final = frozenset(("missing", "verify", "on_store_error", "also"))


class Preset(msgspec.Struct, frozen=True):
    """One preset as its file has it."""

    name: str
    version: int
    description: str
    rules: tuple[Rule, ...]
    broad: frozenset[str] = frozenset()
    """Rules whose shape proves no source: `auto` asks them for known relays alone."""
    anyone: frozenset[str] = frozenset()
    """The broad rules that `auto` asks for everyone who sends no transport id."""
    last: frozenset[str] = frozenset()
    """The broad rules that know less than a transport id: `auto` asks them for nobody."""
    relays: tuple[str, ...] = ()
    """Sources known to be relays: for them `auto` asks the broad rules before the transport id."""


def resolve(spec: Spec | Sequence[Spec]) -> list[Rule]:
    """The rules a spec stands for, in the order they are tried.

    A spec is `"auto"`, a preset's name (`"genesys"`, `"genesys@1"`), a path to a TOML file, a
    `Rule`, or a list of these: what stands earlier wins, so rules of one's own go first.
    """
    if isinstance(spec, Rule):
        return [spec]
    if isinstance(spec, PathLike):
        return _from_file(os.fspath(spec))
    if isinstance(spec, str):
        if is_file(spec):
            return _from_file(spec)
        preset = load(spec)
        return list(_auto() if preset.name == AUTO else preset.rules)
    if isinstance(spec, Sequence):
        return [rule for one in spec for rule in resolve(one)]
    raise ConfigError(
        "rules: expected a preset's name, a path to a TOML file, a Rule, or a list of these, "
        f"not {type(spec).__name__}"
    )


def is_file(spec: str) -> bool:
    """Whether a spec is the path of a TOML file; other strings are names of presets."""
    return spec.endswith(_SUFFIX) or "/" in spec or "\\" in spec


def overridden(spec: Spec | Sequence[Spec], **fields: Any) -> list[Rule]:
    """The same rules with these fields in place of their own, whatever makes two events the same
    left as it is: `remember`, `shadow`, `also`. A state's rule is spared what only facts take."""
    unknown = sorted(fields.keys() - set(OVERRIDABLE))
    if unknown:
        raise ConfigError(
            f"override: {unknown[0]} cannot be set for all rules; {', '.join(OVERRIDABLE)} can"
        )
    of_states = {name: value for name, value in fields.items() if name not in _OF_FACTS}
    return [
        msgspec.structs.replace(rule, **(fields if rule.kind == "fact" else of_states))
        for rule in resolve(spec)
    ]


def names() -> dict[str, str]:
    """Every preset with its one line of description, `auto` first."""
    return {name: load(name).description for name in _known()}


@cache
def load(name: str) -> Preset:
    """The preset of this name, of its newest version if the name says none."""
    stem, _, version = name.partition("@")
    texts = _texts()
    if stem not in texts:
        raise ConfigError(_unknown(name, stem))
    preset = _read(stem, texts[stem])
    if version in ("", str(preset.version)):
        return preset
    if f"{stem}@{version}" in texts:
        return _read(stem, texts[f"{stem}@{version}"])
    older = [one for one in texts if one.startswith(f"{stem}@")]
    kept = ", ".join([*sorted(older), f"{stem}@{preset.version}"])
    raise ConfigError(f"rules: no preset {name!r}; of {stem!r} there is {kept}")


def _known() -> list[str]:
    return sorted(
        (name for name in _texts() if "@" not in name), key=lambda name: (name != AUTO, name)
    )


@cache
def _texts() -> Mapping[str, str]:
    """Each preset's path by its name; that of `genesys:latest` is `genesys-latest.toml`."""
    # Not by pathlib or importlib.resources: they would be a tenth of a Lambda's cold import.
    folder = os.path.dirname(__file__)  # noqa: PTH120
    found = {}
    for file in os.listdir(folder):  # noqa: PTH208
        if file.endswith(_SUFFIX):
            stem = file.removesuffix(_SUFFIX)
            found[stem.replace("-latest", ":latest")] = f"{folder}/{file}"
    return found


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123  as above
        return file.read()


def _read(name: str, path: str) -> Preset:
    # Slow to import, and who has rules of one's own does not need them.
    from eventonce.rules import tomltext  # noqa: PLC0415
    from eventonce.rules.tomltext import rules_in  # noqa: PLC0415

    document = tomltext.read(_text(path), name=os.path.basename(path))  # noqa: PTH119
    said = document.values
    for table in said["rule"]:
        _complete(table, said.get("ignore", ()))
    rules, faults = rules_in(document)
    if faults:
        raise document.complaint(faults)
    if "then" in said:
        rules.extend(load(said["then"]).rules)
    return Preset(
        name=name,
        version=said["version"],
        description=said["description"],
        rules=tuple(rules),
        broad=frozenset(said.get("broad", ())),
        anyone=frozenset(said.get("anyone", ())),
        last=frozenset(said.get("last", ())),
        relays=tuple(said.get("relays", ())),
    )


def _complete(table: dict[str, Any], ignored: Sequence[str]) -> None:
    """Give a preset's rule what all of them have in common.

    An event that lacks what its source should send still has a transport id: it is not refused for
    it. Fields that are written anew are left out only where something else tells events apart: an
    id that is verified, or a version's order.
    """
    table.setdefault("missing", "id")
    if "verify" in table or "subject" in table:
        table.setdefault("ignore", ignored)


@cache
def _auto() -> tuple[Rule, ...]:
    """All presets in one: the rows that know their source, for others of AWS and its partners the
    transport id, the rows that know their type, those that know their shape, those for known
    relays, the transport id, and for what has none its content with its time.

    Facts only: that older news is dropped must be chosen by name.
    """
    found = [load(name) for name in _AUTO_ORDER]
    narrow = [rule for preset in found for rule in _facts(preset) if rule.name not in preset.broad]
    matched = [rule for rule in narrow if rule.match != Match()]
    of_relays = set(_facts(load("relayed")))
    by_id = load("eventbridge").rules
    return (
        *(rule for rule in matched if rule not in of_relays),
        *(msgspec.structs.replace(rule, match=_AWS) for rule in by_id if rule.match == Match()),
        *(rule for rule in matched if rule in of_relays),
        *(rule for rule in narrow if rule.match == Match()),
        *(rule for preset in found for rule in _for_relays(preset)),
        *by_id,
        *(rule for preset in found for rule in _for_anyone(preset)),
        *load(AUTO).rules,
    )


def _for_relays(preset: Preset) -> Iterator[Rule]:
    for rule in _facts(preset):
        if rule.name in preset.broad - preset.last:
            match = Match(type=rule.match.type, source=preset.relays, form=rule.match.form)
            yield msgspec.structs.replace(rule, match=match)


def _for_anyone(preset: Preset) -> Iterator[Rule]:
    """The rules that `auto` asks for every source: with nothing ignored, because a field that a
    relay writes anew may be all that tells the events of another source apart."""
    for rule in _facts(preset):
        if rule.name in preset.anyone:
            yield msgspec.structs.replace(rule, ignore=())


def _facts(preset: Preset) -> list[Rule]:
    return [rule if rule.kind == "fact" else _version(rule) for rule in preset.rules]


def _version(rule: Rule) -> Rule:
    """The fact that a state's version is: of what, in which state, and when exactly."""
    return msgspec.structs.replace(
        rule,
        key=(*rule.subject, *rule.state, rule.order),
        at=rule.order,
        subject=(),
        order="",
        state=(),
        unchanged_within=0,
        scope="",
        ignore=(),
    )


def _from_file(path: str) -> list[Rule]:
    from eventonce.rules.tomltext import parse_rule_file  # noqa: PLC0415  as above

    try:
        text = _text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(f"rules: {path}", error) from error
    return parse_rule_file(text, name=path)


def _unknown(name: str, stem: str) -> str:
    from eventonce.rules.tomltext import meant  # noqa: PLC0415  only a complaint needs it

    known = _known()
    return (
        f"rules: no preset is called {name!r}{meant(stem, known)}; there are {', '.join(known)}. "
        "A file of rules is named by its path, such as ./mine.toml"
    )
