"""Signatures of requests to AWS: the same as those of botocore."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest import mock

from botocore import auth, credentials
from botocore.awsrequest import AWSRequest
from hypothesis import given
from hypothesis import strategies as st

from eventonce.aws.sigv4 import Credentials, signed

TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)
VALUE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60)
NAME = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=20).map("x-{}".format)
HOST = st.from_regex(r"[a-z]{1,10}(\.[a-z]{1,10}){0,3}(:[1-9][0-9]{3})?", fullmatch=True)
AT = st.integers(0, 4_000_000_000)


@given(
    st.dictionaries(NAME.filter(lambda it: not it.startswith("x-am")), VALUE, max_size=4),
    HOST,
    st.binary(max_size=200),
    st.builds(Credentials, TEXT, TEXT, st.just("") | TEXT),
    st.sampled_from([("eu-central-1", "dynamodb"), ("us-east-1", "sqs")]),
    AT,
)
def test_a_signature_is_the_same_as_that_of_botocore(
    headers: dict[str, str],
    host: str,
    body: bytes,
    who: Credentials,
    scope: tuple[str, str],
    at: int,
) -> None:
    request = AWSRequest("POST", f"https://{host}/", dict(headers), body)
    keys = credentials.Credentials(who.key, who.secret, who.token or None)
    now = datetime.fromtimestamp(at, UTC)
    with mock.patch.object(auth, "get_current_datetime", return_value=now):
        auth.SigV4Auth(keys, scope[1], scope[0]).add_auth(request)
    ours = signed({**headers, "host": host}, body, who, scope, at)
    theirs = {name.lower(): value for name, value in request.headers.items()}
    assert ours == {**theirs, "host": host}
