"""AWS: the only package that knows AWS libraries, and Lambda's entry point.

`lambda_handler` is loaded when it is first used: stores import `sessions` from this package, and
the entry point imports the consumer, which needs the stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventonce.aws.handler import NotSettled, UnsupportedSource, lambda_handler

__all__ = ["NotSettled", "UnsupportedSource", "lambda_handler"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from eventonce.aws import handler  # noqa: PLC0415  see above

        return getattr(handler, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
