"""Records packed into the bytes of a row."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventonce.core.ledger import Record
from eventonce.errors import StoreMismatch
from eventonce.stores.sqlite.codec import lives_until, pack, unpack
from eventonce.types import MAX_ORDER

instants = st.integers(0, 2**47)
orders = st.none() | st.integers(-MAX_ORDER, MAX_ORDER)
digests = st.lists(st.binary(max_size=8), max_size=3).map(tuple)

records = st.builds(
    Record,
    token=st.integers(1, 2**62),
    attempt=st.integers(0, 300),
    nonce=st.integers(0, 2**53),
    held_until=instants,
    expires=instants,
    done=st.booleans(),
    by=st.binary(max_size=8),
    result=st.none() | st.binary(max_size=8),
    digests=digests,
    dead=digests,
    order=orders,
    at=instants,
    tried=orders,
    trying=st.binary(max_size=8),
    dirty=st.booleans(),
)
plain = st.builds(
    Record,
    token=st.integers(1, 2**62),
    attempt=st.integers(0, 300),
    nonce=st.integers(0, 2**53),
    held_until=instants,
    expires=instants,
    done=st.booleans(),
    by=st.binary(max_size=8),
)


@given(records | plain)
@example(Record(token=7, attempt=256, expires=1))
@example(Record(token=7, held_until=2, expires=1))
def test_a_record_is_the_same_after_packing_and_unpacking(record: Record) -> None:
    assert unpack(record.token, lives_until(record), pack(record)) == record


def test_a_completed_fact_takes_its_transport_hash_and_one_byte_more() -> None:
    record = Record(token=7, expires=1_790_000_000_000, done=True, by=b"here")
    assert pack(record) == b"\x01here"


def test_a_lease_adds_the_bytes_of_its_attempt_its_nonce_and_its_end() -> None:
    record = Record(token=7, attempt=255, nonce=5, held_until=9, expires=9, by=b"here")
    assert len(pack(record)) == len(b"\x02here") + 1 + 8 + 8


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x04here"])
def test_an_unknown_form_is_refused(body: bytes) -> None:
    with pytest.raises(StoreMismatch, match="cannot read"):
        unpack(7, 1_790_000_000_000, body)


def test_a_nonce_beyond_64_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        pack(Record(token=7, nonce=2**64, expires=1))
