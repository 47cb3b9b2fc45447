"""References: `${…}` in a string of the file is replaced by a value from another place, so that the
file has no secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from eventonce.aws import errors
from eventonce.aws.sessions import Access, Client, connect
from eventonce.errors import ConfigError, EventonceError
from eventonce.rules.tomltext import Fault, Place, label

REMOTE_KINDS: Final = ("ssm", "secretsmanager")
"""The kinds of references whose values come from a service."""

READ_TIMEOUT: Final = 10.0
READ_ATTEMPTS: Final = 3

_REFERENCE: Final = re.compile(
    r"\$\{(?:(\w+)|(env|file|ssm|secretsmanager):([^{}]+))\}|\$\{(?:[^{}]*\}|\w+:)"
)
"""A reference, or a text that looks like one: such a text must not become a key."""

SECRET_FIELDS: Final[tuple[Place, ...]] = (
    ("secrets",),
    ("privacy", "sealing_keys"),
    ("serve", "api_keys"),
    ("serve", "users"),
    ("serve", "webhook_secrets"),
    ("serve", "stripe_secrets"),
    ("serve", "shopify_secrets"),
    ("serve", "github_secrets"),
    ("dashboard", "viewers"),
    ("dashboard", "operators"),
    ("sink", "headers"),
)
"""The fields of the file whose texts are secrets, keys, tokens or passwords."""

_BARE: Final = re.compile(
    r"""(?isx) \s* (?:[\w-]+\s+)?  # in a header: Bearer
    (?: [$%({<\[]* (?:resolve:)? (?P<kind>env|file|ssm|secretsmanager):.+
      | arn:aws[\w-]*:(?P<service>ssm|secretsmanager):.+
      | \$[({]*[a-z_]\w*[)}]* | %[a-z_]\w*% | \{+\s*[a-z_][\w.]*\s*\}+
    ) \s*"""
)
"""The other spellings of a reference that people try: without `${…}`, with another bracket, or the
ARN of a secret alone."""


class References:
    """Replaces the references of one file; each is looked up once."""

    def __init__(self, *, ask: bool) -> None:
        """`ask` is whether services are asked; otherwise their references stay unchanged."""
        self._ask = ask
        self._values: dict[tuple[str, str], str] = {}
        self.faults: list[Fault] = []
        self.unasked: list[Place] = []
        """The places of references that stay unchanged."""

    def filled(self, value: Any, place: Place = ()) -> Any:
        """Return the value with the references in its strings replaced."""
        if isinstance(value, dict):
            return {name: self.filled(inner, (*place, name)) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.filled(inner, (*place, number)) for number, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        if not _REFERENCE.search(value):
            self._refuse_bare(value, place)
        return _REFERENCE.sub(partial(self._found, place), value)

    def _refuse_bare(self, value: str, place: Place) -> None:
        """Add a fault if a secret looks like a reference: otherwise the text itself, which anybody
        can guess, would be the secret. The fault does not repeat the text, which may be secret."""
        names = tuple(step for step in place if isinstance(step, str))
        bare = _BARE.fullmatch(value)
        if bare is None or not any(names[: len(it)] == it for it in SECRET_FIELDS):
            return
        kind = (bare["kind"] or bare["service"] or "env").lower()
        right = f"${{{kind}:{'PATH' if kind == 'file' else 'NAME'}}}"
        said = f"looks like a reference, and the text itself would be the secret; write {right}"
        self.faults.append(Fault(place, f"{label(place)}: {said}"))

    def _found(self, place: Place, reference: re.Match[str]) -> str:
        kind, name = reference[2] or "env", reference[3] or reference[1]
        if not name:
            kinds = ", ".join(f"${{{kind}:…}}" for kind in _LOOKED_UP)
            said = f"{reference[0]!r} is not a reference; write ${{NAME}}, {kinds}"
            self.faults.append(Fault(place, f"{label(place)}: {said}"))
            return reference[0]
        if kind in REMOTE_KINDS and not self._ask:
            self.unasked.append(place)
            return reference[0]
        try:
            if (kind, name) not in self._values:
                self._values[kind, name] = _LOOKED_UP[kind](name)
        except EventonceError as error:
            self.faults.append(Fault(place, f"{label(place)}: {error}"))
            return reference[0]
        return self._values[kind, name]


def files_in(texts: Iterable[str]) -> Iterator[Path]:
    """Yield the files that references in these texts name."""
    for text in texts:
        for reference in _REFERENCE.finditer(text):
            if reference[2] == "file":
                yield Path(reference[3])


def _of_environment(name: str) -> str:
    if name not in os.environ:
        raise ConfigError(f"the environment has no variable {name}")
    return os.environ[name]


def _of_file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the file {path} cannot be read: {_why(error)}") from error


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _of_parameter(text: str) -> str:
    name, client = _asked("ssm", text, "parameter")
    answer = client.call("get_parameter", Name=name, WithDecryption=True)
    return str(answer["Parameter"]["Value"])


def _of_secret(text: str) -> str:
    """Return a secret, or with `#field` one field of a secret that is a JSON object."""
    named, _, query = text.partition("?")
    named, _, field = named.partition("#")
    name, client = _asked("secretsmanager", f"{named}?{query}", "secret")
    answer = client.call("get_secret_value", SecretId=name)
    secret = answer.get("SecretString")
    if secret is None:
        raise ConfigError(f"the secret {name} is binary; it must be a text")
    if not field:
        return str(secret)
    try:
        fields = msgspec.json.decode(secret, type=dict[str, str | int])
        return str(fields[field])
    except msgspec.DecodeError:
        raise ConfigError(f"the secret {name} is not a JSON object of texts") from None
    except KeyError:
        raise ConfigError(f"the secret {name} has no field {field!r}") from None


def _asked(service: str, text: str, noun: str) -> tuple[str, Client]:
    name, _, query = text.partition("?")
    place = f"the {noun} {name}"
    access = Access.from_query(query, place)
    make = partial(connect, service, access, read_timeout=READ_TIMEOUT, attempts=READ_ATTEMPTS)
    return name, Client(make, partial(errors.explain, place=place, noun=noun))


_LOOKED_UP: Final = {
    "env": _of_environment,
    "file": _of_file,
    "ssm": _of_parameter,
    "secretsmanager": _of_secret,
}
