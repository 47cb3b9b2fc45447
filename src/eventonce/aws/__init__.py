"""AWS: the only package that knows boto3, and Lambda's entry point.

`lambda_handler` is loaded when it is first asked for: a store that makes its client with `sessions`
stands below everything that the entry point needs.
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
