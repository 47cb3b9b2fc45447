"""HTTP as a Lambda sees it: requests of API Gateway, Function URLs, load balancers and VPC Lattice,
answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from eventonce.http_report import Answer

PROBE: Final = "elb-healthchecker/"
"""How a load balancer's health check names itself; it asks with GET, and wants a 200."""


class Request(NamedTuple):
    """What a request says, whoever handed it over."""

    method: str
    headers: Mapping[str, str]
    """Names in lower case; of several values of one name, the last."""
    body: bytes

    @property
    def probes(self) -> bool:
        """Whether a load balancer only asks if somebody is there."""
        return self.method == "GET" and self.headers.get("user-agent", "").lower().startswith(PROBE)


def is_request(event: Mapping[str, Any]) -> bool:
    """Whether this is HTTP; a Lambda destination has a `requestContext` too, with its payload."""
    return ("requestContext" in event and "requestPayload" not in event) or (
        # VPC Lattice, the first version of its form.
        "raw_path" in event and "method" in event
    )


def request_of(event: Mapping[str, Any]) -> Request:
    """The request, whichever of the forms it came in."""
    context = event.get("requestContext") or {}
    http = context.get("http") or {}
    several = event.get("multiValueHeaders") or {}
    headers = {name: values[-1] for name, values in several.items() if values}
    headers.update(event.get("headers") or {})
    method = http.get("method") or event.get("httpMethod") or event.get("method") or "POST"
    return Request(
        method=str(method).upper(),
        headers={name.lower(): _last(value) for name, value in headers.items()},
        body=_body(event),
    )


def _last(value: Any) -> str:
    """The value of a header; VPC Lattice gives a list of them."""
    if isinstance(value, list):
        return str(value[-1]) if value else ""
    return str(value)


def _body(event: Mapping[str, Any]) -> bytes:
    body = str(event.get("body") or "").encode(errors="surrogatepass")
    if not (event.get("isBase64Encoded") or event.get("is_base64_encoded")):
        return body
    from base64 import b64decode  # noqa: PLC0415  few requests need it

    try:
        return b64decode(body, validate=True)
    except ValueError:
        # What is not base64 after all is no event either, most likely: as it is, a letter keeps it.
        return body


def response(event: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """The answer in the form this request wants it.

    A load balancer that sends lists of headers understands nothing else.
    """
    said: dict[str, Any] = {"statusCode": answer.status, "isBase64Encoded": False}
    if "multiValueHeaders" in event:
        said["multiValueHeaders"] = {name: [value] for name, value in answer.headers.items()}
    else:
        said["headers"] = dict(answer.headers)
    return {**said, "body": answer.body.decode()}
