"""Questions to AWS. A question without an answer becomes a finding, "not checked", so that a
missing permission does not hide a fault."""

from __future__ import annotations

from typing import Any, Final

from eventonce.aws import errors
from eventonce.aws.sessions import Access, connect
from eventonce.core.ports import Finding
from eventonce.errors import EventonceError

READ_TIMEOUT: Final = 20.0  # seconds
REQUEST_ATTEMPTS: Final = 3

UNUSABLE_KINDS: Final = frozenset[errors.Kind](
    ("expired", "misconfigured", "no_credentials", "not_renewed", "unknown_caller")
)
"""The kinds of errors after which no other request would be answered either."""

PAGE_TOKENS: Final = {
    "events": ("NextToken", "NextToken"),
    "lambda": ("Marker", "NextMarker"),
    "sns": ("NextToken", "NextToken"),
}
"""The names of the token of the next page, in a request and in an answer, by service."""

Answer = dict[str, Any]


class Asked:
    """The clients, and the findings of questions without an answer."""

    def __init__(self, access: Access) -> None:
        self.unseen: list[tuple[str, Finding]] = []
        self.unusable = False
        self._access = access
        self._clients: dict[str, Any] = {}

    def unchecked(self, area: str, what: str) -> None:
        """Add a finding that this could not be checked."""
        self.unseen.append((area, Finding(what, unchecked=True)))

    def missing(self, area: str, what: str) -> None:
        """Add a finding that this does not exist."""
        fix = (
            "check its name, region and account, and the permission to see it; or create it: "
            "eventonce infra apply"
        )
        self.unseen.append((area, Finding(f"{what} does not exist", fix, missing=True)))

    def ask(
        self,
        area: str,
        service: str,
        operation: str,
        what: str,
        *,
        has: str = "",
        absent: Answer | None = None,
        **asked: Any,
    ) -> Answer:
        """Return the answer. If there is none, or it lacks the field `has`, return an empty one and
        add a finding about `what`. `absent` is the answer for a thing that need not exist."""
        try:
            answer: Answer = getattr(self.client(service), operation)(**asked)
        except EventonceError:
            raise  # the driver is not installed
        except Exception as error:  # noqa: BLE001  every other failure is a finding
            if absent is not None and errors.kind_of(error) == "absent":
                return absent
            # The name of the action in a policy: get_queue_url is sqs:GetQueueUrl.
            action = f"{service}:{operation.title().replace('_', '')}"
            self._unanswered(area, action, what, error)
            return {}
        if has and has not in answer:
            self.unchecked(area, f"{what}: {errors.text('strange', operation=operation)}")
            return {}
        return answer

    def pages(
        self, area: str, service: str, operation: str, field: str, what: str, **asked: Any
    ) -> list[Any]:
        """Return the entries of this field on all pages."""
        theirs, ours = PAGE_TOKENS[service]
        found: list[Any] = []
        while True:
            answer = self.ask(area, service, operation, what, **asked)
            found += answer.get(field) or ()
            if not answer.get(ours):
                return found
            asked[theirs] = answer[ours]

    def client(self, service: str) -> Any:
        """Return the client of this service."""
        if service not in self._clients:
            limits: dict[str, Any] = {"read_timeout": READ_TIMEOUT, "attempts": REQUEST_ATTEMPTS}
            self._clients[service] = connect(service, self._access, **limits)
        return self._clients[service]

    def region(self) -> str:
        """Return the region of the requests; empty if there is none."""
        try:
            # Not of STS, which may be global.
            return str(self.client("sqs").meta.region_name)
        except Exception:  # noqa: BLE001  every question says why there is no client
            return ""

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()

    def _unanswered(self, area: str, action: str, what: str, error: Exception) -> None:
        kind, code = errors.kind_of(error), errors.code_of(error)
        message = errors.message_of(error)
        said = errors.text(kind, code, message, name=type(error).__name__, noun=what)
        if kind == "absent":
            self.missing(area, what)
        elif kind in UNUSABLE_KINDS and not self.unusable:
            self.unusable = True
            self.unseen.append((area, Finding(f"AWS does not answer: {what}", said)))
        elif kind in UNUSABLE_KINDS:
            self.unchecked(area, f"{what} ({action}): AWS does not answer")
        else:
            self.unchecked(area, f"{what} ({action}): {said}")
