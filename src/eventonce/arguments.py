"""Checks of arguments: each raises ConfigError with the argument's name, its value and the value
that was expected."""

from __future__ import annotations

from collections.abc import Iterable

from eventonce.errors import ConfigError


def check_count(name: str, value: object) -> None:
    """Refuse anything but a whole number from 1."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} must be a whole number, not {value!r}")
    if value < 1:
        raise ConfigError(f"{name} must be at least 1, not {value}")


def check_seconds(name: str, value: object, *, negative: bool = False) -> None:
    """Refuse anything but a number of seconds, 0 or more unless it may be negative."""
    # NaN does not equal itself.
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:  # noqa: PLR0124
        raise ConfigError(f"{name} must be a number of seconds, not {value!r}")
    if value < 0 and not negative:
        raise ConfigError(f"{name} must be 0 seconds or more, not {value}")


def check_flag(name: str, value: object) -> None:
    """Refuse anything but True and False: a text such as "no" would count as true."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {value!r}")


def check_function(name: str, value: object) -> None:
    """Refuse anything that cannot be called."""
    if not callable(value):
        raise ConfigError(f"{name} must be a function, not {value!r}")


def check_iterable(name: str, value: object, expected: str) -> None:
    """Refuse anything that is not iterable; the caller checks the items."""
    if not isinstance(value, Iterable):
        raise ConfigError(f"{name}: expected a list of {expected}, not {type(value).__name__}")


def check_texts(name: str, value: object) -> None:
    """Refuse anything but a list of texts: one text would be taken for a list of its characters."""
    if isinstance(value, list | tuple | set | frozenset):
        wrong = [one for one in value if not isinstance(one, str)]
        if not wrong:
            return
        value = wrong[0]
    raise ConfigError(f"{name} must be a list of texts, not {value!r}")


def check_keys(keys: Iterable[object]) -> None:
    """Refuse a key that is not bytes: a store would answer that there is no record."""
    for key in keys:
        if not isinstance(key, bytes):
            raise ConfigError(
                f"a key must be bytes, not {key!r}; bytes.fromhex reads a key in hexadecimal"
            )
