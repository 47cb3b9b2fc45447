"""One queue, made as it must be or mended where it differs; `apply` knows which there are."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from eventonce.infra.account import Account
from eventonce.infra.resources import VERSION

AMAZONS: Final = "alias/aws/sqs"
"""The key that SQS has in every account, and whose policy nobody can change."""

_ANY: Final = '{"redrivePermission": "allowAll"}'
"""What a queue without such a policy allows."""


def queue(
    account: Account,
    name: str,
    settings: Mapping[str, Any],
    let_in: Mapping[str, Any] | None = None,
) -> None:
    """See to it that the queue is there, is set like this, and lets in whom it must."""
    what = f"SQS queue {name}"
    found = account.find("sqs", "get_queue_url", what, QueueName=name)
    if found is None:
        _make(account, name, settings, let_in)
        return
    url = found["QueueUrl"]
    answer = account.ask("sqs", "get_queue_attributes", what, QueueUrl=url, AttributeNames=["All"])
    now: Mapping[str, str] = answer["Attributes"]

    def put(key: str, value: str) -> Callable[[], object]:
        changed = {key: value}
        return lambda: account.ask(
            "sqs", "set_queue_attributes", what, QueueUrl=url, Attributes=changed
        )

    for key, wanted in settings.items():
        if _is_set(key, wanted, now):
            continue
        if key == "MessageRetentionPeriod" and int(now[key]) > wanted:
            account.left.append(
                f"the queue {name} keeps messages for {now[key]} s, {wanted} were expected; "
                f"lessening it would delete what is older"
            )
            continue
        mended = _text(_with_others(wanted, now.get(key)))
        said = f"set {key} of the queue {name} to {mended} (was {now.get(key)})"
        account.step(said, put(key, mended))
    if let_in is not None:
        policy = with_statement(now.get("Policy", ""), let_in)
        if policy is not None:
            said = f"let {_source(let_in)} send to the queue {name}"
            account.step(said, put("Policy", json.dumps(policy)))
        if now.get("KmsMasterKeyId"):
            account.left.append(
                f"the queue {name} is encrypted with the key {now['KmsMasterKeyId']}; EventBridge "
                f"reaches it only if that key's own policy lets it, which {AMAZONS}'s never does"
            )


def _make(
    account: Account, name: str, settings: Mapping[str, Any], let_in: Mapping[str, Any] | None
) -> None:
    said = f"make the queue {name}"
    attributes = {key: _text(value) for key, value in settings.items()}
    if let_in is not None:
        said += f", which lets in {_source(let_in)}"
        attributes["Policy"] = json.dumps(with_statement("", let_in))
    asked = {"QueueName": name, "Attributes": attributes}
    account.step(said, lambda: account.ask("sqs", "create_queue", f"SQS queue {name}", **asked))


def _source(let_in: Mapping[str, Any]) -> str:
    return str(let_in["Condition"]["ArnEquals"]["aws:SourceArn"])


def _is_set(key: str, wanted: Any, now: Mapping[str, str]) -> bool:
    held = now.get(key)
    if key == "SqsManagedSseEnabled" and now.get("KmsMasterKeyId"):
        return True  # a key of one's own is as good
    if key == "RedriveAllowPolicy" and json.loads(held or _ANY) == json.loads(_ANY):
        return True  # narrowing it might shut out another's queue
    if held is None:
        return False
    if not isinstance(wanted, dict):
        return held == _text(wanted)
    there = json.loads(held)
    # SQS gives numbers back as numbers or as texts, as they were given.
    mended = _with_others(wanted, held)
    return all(str(there.get(name)) == str(value) for name, value in mended.items())


def _with_others(wanted: Any, held: str | None) -> Any:
    """The same, where it lists something with what others have listed there too."""
    if not isinstance(wanted, dict):
        return wanted
    there = json.loads(held or "{}")
    return {
        name: list(dict.fromkeys([*there.get(name, ()), *value]))
        if isinstance(value, list)
        else value
        for name, value in wanted.items()
    }


def _text(value: Any) -> str:
    """An attribute as SQS has it: all of them are texts."""
    return value if isinstance(value, str) else json.dumps(value)


def with_statement(held: str, statement: Mapping[str, Any]) -> dict[str, Any] | None:
    """The policy with this statement in it, the others left as they are; None if it is there."""
    policy: dict[str, Any] = json.loads(held) if held else {"Version": VERSION}
    there = policy.get("Statement", [])
    statements = there if isinstance(there, list) else [there]
    if statement in statements:
        return None
    others = [one for one in statements if one.get("Sid") != statement["Sid"]]
    return {**policy, "Statement": [*others, dict(statement)]}
