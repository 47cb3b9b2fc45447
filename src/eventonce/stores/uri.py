"""The URI of a store: its parts, and its checked options; each store defines its own options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Meta

from eventonce.core.masking import masked, split
from eventonce.errors import ConfigError

Host = tuple[str, int | None]
"""A name or an address, and a port if there is one."""

Seconds = Annotated[
    float, Meta(gt=0, le=3_600, description="a number of seconds, greater than 0 and at most 3600")
]
Count = Annotated[int, Meta(ge=1, description="a whole number, at least 1")]
CountOrZero = Annotated[int, Meta(ge=0, description="a whole number, 0 or greater")]

_OPTION: Final = re.compile(r"[A-Za-z_]\w{0,39}", re.ASCII)
_PATH: Final = re.compile(r" - at `\$\.(\w+)")

T = TypeVar("T", bound=msgspec.Struct)


class StoreURI(msgspec.Struct, frozen=True):
    """The parts of a URI, percent-decoded. `repr` and errors show only the scheme and the host."""

    shown: str
    scheme: str
    user: str | None
    password: str | None
    hosts: tuple[Host, ...]
    path: str
    """The path with its leading slash."""
    options: Mapping[str, str]
    help: str

    def __repr__(self) -> str:
        return f"StoreURI({self.shown!r})"

    def refuse(self, problem: str) -> ConfigError:
        """Return the error to raise: the place, the problem, and how such a URI is written."""
        return ConfigError(f"store {self.shown}: {problem}. {self.help}")

    def read(self, kind: type[T], *, others: bool = False) -> T:
        """Return the options as a struct; its fields are their names, types and defaults.

        An option without a field is refused, unless `others` is true.
        """
        fields = kind.__struct_fields__
        unknown = [name for name in self.options if name not in fields]
        if unknown and not others:
            named = f"option {unknown[0]!r}" if _OPTION.fullmatch(unknown[0]) else "such option"
            raise ConfigError(f"store {self.shown}: no {named}. Allowed are: {', '.join(fields)}")
        known = {name: value for name, value in self.options.items() if name in fields}
        try:
            return msgspec.convert(known, kind, strict=False)
        except msgspec.ValidationError as error:
            found = _PATH.search(str(error))
            name = found[1] if found else ""
        # Outside the `except`: the library's error, as the cause, would show the value.
        hint = get_type_hints(kind, include_extras=True).get(name)
        raise ConfigError(
            f"store {self.shown}: {name}={known.get(name, '')[:40]} is not allowed; "
            f"expected {_expected(hint)}"
        )


def parse_uri(uri: str, help: str) -> StoreURI:
    """Return the parts of a URI. `help` says in errors how such a URI is written.

    If a user or a password has one of @ / ? # unescaped, its rest would be read as a path or an
    option, and be shown in errors: such a URI is refused.
    """
    parts = split(uri)
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, colon, password = credentials.partition(":")
    # Without a host, the path is that of a file, and no part of a password.
    rest = parts.query + parts.fragment + (parts.path if parts.netloc else "")
    if "@" in rest or "#" in uri:
        raise ConfigError(
            f"store {masked(uri)}: write %40, %2F, %3F and %23 for @ / ? # in a user, a password, "
            f"a path or an option. {help}"
        )
    read = tuple(map(_host, hosts.split(","))) if hosts else ()
    if None in read:
        raise ConfigError(f"store {masked(uri)}: the host or its port cannot be read. {help}")
    return StoreURI(
        shown=masked(uri),
        scheme=parts.scheme,
        user=unquote(user) or None,
        password=unquote(password) if colon else None,
        hosts=tuple(host for host in read if host is not None),
        path=unquote(parts.path),
        options=dict(parse_qsl(parts.query, keep_blank_values=True)),
        help=help,
    )


_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:]+))(?::(\d{1,5}))?", re.ASCII)


def _host(text: str) -> Host | None:
    found = _HOST.fullmatch(text)
    if not found:
        return None
    port = int(found[3]) if found[3] else None
    if port is not None and not 0 < port < 65_536:
        return None
    return unquote(found[1] or found[2]), port


def _expected(hint: Any) -> str:
    """Return the values that a field's type allows: from its `Meta`, or listed."""
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    for part in get_args(hint):
        if isinstance(part, Meta) and part.description:
            return part.description
        if get_origin(part) in (Annotated, Literal):
            return _expected(part)
    return getattr(hint, "__name__", "another value")
