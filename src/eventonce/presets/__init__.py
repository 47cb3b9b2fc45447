"""The presets: rules as data for known sources, found by name.

Each is a TOML file beside this one, read at first use. The keys of a released version never change:
a new version replaces the file, and the old one is kept beside it as `name@1.toml`.
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
"""The order of presets: business keys before transport headers, because a relay that wraps a
Genesys event in a webhook gives it a new webhook id with every publish."""

_AWS: Final = Match(source=("aws.*",))
"""Sources that no relay can have: EventBridge reserves these names for AWS and its partners."""

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
    """One preset, as its file defines it."""

    name: str
    version: int
    description: str
    rules: tuple[Rule, ...]
    broad: frozenset[str] = frozenset()
    """Rules whose fields prove no source: `auto` uses them only for known relays."""
    anyone: frozenset[str] = frozenset()
    """The broad rules that `auto` uses for every source that sends no transport id."""
    last: frozenset[str] = frozenset()
    """The broad rules that are weaker than a transport id: `auto` does not use them."""
    relays: tuple[str, ...] = ()
    """Sources known as relays: for them `auto` tries the broad rules before the transport id."""


def resolve(spec: Spec | Sequence[Spec]) -> list[Rule]:
    """Return the rules of a spec, in the order in which they are tried.

    A spec is `"auto"`, a preset's name (`"genesys"`, `"genesys@1"`), a path to a TOML file, a
    `Rule`, or a list of these: the first rule that matches wins, so put your own rules first.
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
    """Return whether a spec is the path of a TOML file; other strings are names of presets."""
    return spec.endswith(_SUFFIX) or "/" in spec or "\\" in spec


def overridden(spec: Spec | Sequence[Spec], **fields: Any) -> list[Rule]:
    """Return the same rules with these fields replaced. Only fields that do not define which events
    are the same can be given: `remember`, `shadow`, `also`. Fields for facts skip state rules."""
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
    """Return every preset with its one line of description, `auto` first."""
    return {name: load(name).description for name in _known()}


@cache
def load(name: str) -> Preset:
    """Return the preset of this name; its newest version if the name has none."""
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
    """Return each preset's path by its name; that of `genesys:latest` is `genesys-latest.toml`."""
    # Not by pathlib or importlib.resources, which would take a tenth of a Lambda's cold import.
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
    # Slow to import, and not needed with rules in Python.
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
    """Add the defaults of a preset's rules.

    An event without the fields of its key still has a transport id, so it is not refused. Volatile
    fields are ignored only if something else tells events apart: an id that is verified, or the
    order of a version.
    """
    table.setdefault("missing", "id")
    if "verify" in table or "subject" in table:
        table.setdefault("ignore", ignored)


@cache
def _auto() -> tuple[Rule, ...]:
    """Return all presets as one list: the rules that match a source; the transport id for other
    sources of AWS and its partners; the rules that match a type; those that match the fields of an
    event; those for known relays; the transport id; and for events without one, content and time.

    Only facts: dropping older versions must be chosen by name.
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
    """Yield the rules that `auto` uses for every source, with nothing ignored: a field that one
    relay writes anew may be the only difference between events of another source."""
    for rule in _facts(preset):
        if rule.name in preset.anyone:
            yield msgspec.structs.replace(rule, ignore=())


def _facts(preset: Preset) -> list[Rule]:
    return [rule if rule.kind == "fact" else _version(rule) for rule in preset.rules]


def _version(rule: Rule) -> Rule:
    """Return the rule of a version as a fact: its subject, its state and its exact order."""
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
    from eventonce.rules.tomltext import meant  # noqa: PLC0415  only needed for an error

    known = _known()
    return (
        f"rules: no preset is called {name!r}{meant(stem, known)}; there are {', '.join(known)}. "
        "Give a file of rules by its path, such as ./mine.toml"
    )
