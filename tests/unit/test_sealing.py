"""Sealed dead letters and results: without the key they cannot be read, moved or changed, and a
missing key loses nothing."""

from __future__ import annotations

import logging
import os
import sys
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from eventonce import Consumer, Job, Reject, forks
from eventonce.core.ports import AsyncTransactional, StoreAdmin, Transactional, offers
from eventonce.core.sealed import MARK
from eventonce.errors import ConfigError, SealedError, StoreUnavailable
from eventonce.privacy import SealedStore, Sealer, sealer
from eventonce.privacy.keys import LocalKey
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore
from eventonce.types import Letter
from tests.helpers import Run, call, reject, ruled, statuses

OLD, NEW, OTHER = (b64encode(bytes([number]) * 32).decode() for number in (1, 2, 3))
NAMES = {key: Sealer([key]).keys[0].name for key in (OLD, NEW, OTHER)}
SECRET = "+49 30 901820"
"""A value of the event and of the reason."""


def consumed(store: Any, *keys: str, handler: Any = reject, **more: Any) -> Consumer:
    return Consumer(
        store, name="crm", rules=[ruled(**more)], handler=handler, sealing_keys=list(keys)
    )


def rejected(store: Any, *keys: str, calls: Sequence[int] = (1,)) -> None:
    """Dead letters of these calls in the store."""
    consumer = consumed(store, *keys, handler=refusing)
    assert set(statuses(consumer.process([call(it, caller=SECRET) for it in calls]))) == {"dead"}


def refusing(_: Job) -> None:
    raise Reject(f"no customer has {SECRET}")


# The sealer


@given(st.binary(max_size=200), st.binary(max_size=40))
def test_sealed_content_is_opened_with_its_key(content: bytes, about: bytes) -> None:
    sealed = Sealer([OLD]).seal(content, about)
    assert Sealer([NEW, OLD]).open(sealed, about) == content


@given(st.binary(max_size=40), st.data())
def test_sealed_bytes_with_one_bit_changed_are_refused(content: bytes, data: st.DataObject) -> None:
    sealed = bytearray(Sealer([OLD]).seal(content, b"here"))
    at = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[at // 8] ^= 1 << at % 8
    with pytest.raises(SealedError):
        Sealer([OLD]).open(bytes(sealed), b"here")


@given(st.binary(max_size=40), st.data())
def test_sealed_bytes_that_are_cut_off_are_refused(content: bytes, data: st.DataObject) -> None:
    sealed = Sealer([OLD]).seal(content, b"here")
    with pytest.raises(SealedError):
        Sealer([OLD]).open(sealed[: data.draw(st.integers(0, len(sealed) - 1))], b"here")


def test_sealed_content_does_not_open_at_another_place_or_with_another_key() -> None:
    sealed = Sealer([OLD]).seal(b"content", b"here")
    with pytest.raises(SealedError, match="moved here"):
        Sealer([OLD]).open(sealed, b"there")
    with pytest.raises(SealedError, match=f"sealed with the key '{NAMES[OLD]}', which is none of"):
        Sealer([NEW, OTHER]).open(sealed, b"here")
    with pytest.raises(ConfigError, match="no key to seal with"):
        Sealer([]).seal(b"content", b"here")


@pytest.mark.parametrize(
    "key", ["", "secret", OLD[:-4], OLD + "AAAA", "ab" * 31, "kms://", "kms://a b", "kms://x?y=z"]
)
def test_an_invalid_key_is_refused_without_its_text_in_the_error(key: str) -> None:
    with pytest.raises(ConfigError, match=r"sealing_keys\[1\]") as caught:
        Sealer([OLD, key])
    assert key.startswith("kms:") or not key or key not in str(caught.value)


def test_the_error_without_the_extra_names_the_command_that_installs_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ConfigError, match=r'pip install -e "\.\[privacy\]"'):
        Sealer([OLD])
    # A list of sealed content needs no key and no extra.
    with pytest.raises(SealedError, match="is none of the sealing_keys"):
        Sealer([]).open(MARK + b"\x03key\0\x01w" + bytes(40), b"")


def test_a_key_may_be_hexadecimal_and_has_the_same_id() -> None:
    assert Sealer(["01" * 32]).keys[0].name == NAMES[OLD]
    assert OLD not in repr(Sealer([OLD]))


class CountedKey(LocalKey):
    """A key that can be unavailable, and that counts its data keys."""

    def __init__(self) -> None:
        super().__init__(bytes(32))
        self.count = self.unwrapped = 0
        self.away = False

    def made(self) -> tuple[str, bytes, bytes]:
        if self.away:
            raise StoreUnavailable("the key is away")
        self.count += 1
        return super().made()

    def opened(self, id: str, wrapped: bytes) -> bytes | None:
        if self.away:
            raise StoreUnavailable("the key is away")
        self.unwrapped += 1
        return super().opened(id, wrapped)


@pytest.fixture
def key() -> CountedKey:
    return CountedKey()


@pytest.fixture
def counted(key: CountedKey) -> Sealer:
    made = Sealer([])
    made.keys.append(key)
    return made


def test_a_data_key_is_replaced_after_some_uses_or_some_time(
    counted: Sealer, key: CountedKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(sealer, "monotonic", lambda: now)
    monkeypatch.setattr(sealer, "DATA_KEY_USES", 3)
    sealed = [counted.seal(b"", b"") for _ in range(3)]
    assert key.count == 1
    sealed += [counted.seal(b"", b"") for _ in range(2)]
    assert key.count == 2
    now = sealer.DATA_KEY_AGE + 1
    sealed.append(counted.seal(b"", b""))
    assert key.count == 3
    for one in sealed * 2:
        counted.open(one, b"")
    assert key.unwrapped == 3
    now *= 2
    counted.open(sealed[0], b"")
    assert key.unwrapped == 4, "an opened data key is not kept for ever"


def test_a_data_key_that_no_key_opens_is_tried_only_once(counted: Sealer, key: CountedKey) -> None:
    sealed = Sealer([OLD]).seal(b"", b"")
    for _ in range(3):
        with pytest.raises(SealedError, match="is none of the sealing_keys"):
            counted.open(sealed, b"")
    assert key.unwrapped == 1


def test_a_key_that_was_unavailable_is_tried_again(counted: Sealer, key: CountedKey) -> None:
    sealed = counted.seal(b"content", b"")
    key.away = True
    with pytest.raises(StoreUnavailable):
        counted.open(sealed, b"")
    key.away = False
    assert counted.open(sealed, b"") == b"content"


def test_a_data_key_is_used_during_an_outage_of_the_key_until_its_longest_age(
    counted: Sealer, key: CountedKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(sealer, "monotonic", lambda: now)
    counted.seal(b"", b"")
    key.away = True
    now = sealer.DATA_KEY_AGE + 1
    counted.seal(b"", b"")
    now = sealer.LONGEST_AGE + 1
    with pytest.raises(StoreUnavailable):
        counted.seal(b"", b"")
    key.away = False
    counted.seal(b"", b"")
    assert key.count == 2


def test_a_forked_child_does_not_wait_for_the_locks_of_its_parent(
    counted: Sealer,
) -> None:
    sealed = counted.seal(b"content", b"")
    with counted._sealing, counted._lock:
        forks.begin_anew()  # as in a child, where no thread releases the locks
        assert counted.seal(b"", b"")
        assert counted.open(sealed, b"") == b"content"


def test_opened_data_keys_are_bounded(counted: Sealer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealer, "MOST_OPENED", 2)
    monkeypatch.setattr(sealer, "DATA_KEY_USES", 1)
    for one in [counted.seal(b"", b"") for _ in range(4)]:
        counted.open(one, b"")
    assert len(counted._opened) == 2


# Dead letters


def test_a_dead_letter_is_stored_sealed_and_read_unchanged() -> None:
    store, clear = MemoryStore(), MemoryStore()
    rejected(store, OLD)
    rejected(clear)
    (kept,), (letter,) = store.letters(), clear.letters()
    assert SECRET.encode() not in kept.event
    assert kept.reason == f"sealed with the key '{NAMES[OLD]}'"
    assert (kept.id, kept.consumer, kept.status, kept.rule) == (letter.id, "crm", "dead", "call")
    (opened,) = consumed(store, OLD).letters()
    assert replace(opened, at=0) == replace(letter, at=0)
    assert SECRET in opened.reason
    assert consumed(store, OLD).admin.letter(kept.id) == opened
    assert consumed(store, OLD).admin.letter("none") is None


def test_a_file_does_not_contain_the_text_of_a_sealed_dead_letter_or_result(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    rejected(SQLiteStore(path), OLD)
    with consumed(SQLiteStore(path), OLD, handler=lambda _: {"number": SECRET}) as consumer:
        consumer.process([call(2, caller=SECRET)])
    found = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    assert b"call" in found
    assert SECRET.encode() not in found


def test_dead_letters_from_before_the_key_stay_readable_and_run_again() -> None:
    store = MemoryStore()
    rejected(store)
    rejected(store, OLD, calls=[2])
    consumer = consumed(store, NEW, OLD, handler=lambda _: None)
    assert [SECRET in one.reason for one in consumer.letters()] == [True, True]
    assert statuses(consumer.redrive()) == ["done", "done"]
    assert list(store.letters()) == []


def test_a_dead_letter_that_fails_again_is_sealed_with_the_new_key() -> None:
    store = MemoryStore()
    rejected(store, OLD)
    consumer = consumed(store, NEW, OLD)
    assert statuses(consumer.redrive()) == ["dead"]
    (kept,) = store.letters()
    assert kept.reason == f"sealed with the key '{NAMES[NEW]}'"
    (letter,) = consumer.letters()
    assert letter.reason == "rejected by the handler: no such customer"


@pytest.mark.parametrize("keys", [(), (NEW,)])
def test_a_dead_letter_without_its_key_is_listed_and_stays_unchanged(keys: Sequence[str]) -> None:
    store = MemoryStore()
    rejected(store, OLD)
    (before,) = store.letters()
    ran: list[Job] = []
    consumer = consumed(store, *keys, handler=ran.append)
    (listed,) = consumer.letters()
    assert (listed.id, listed.status, listed.rule) == (before.id, "dead", "call")
    assert f"sealed with the key '{NAMES[OLD]}'" in listed.reason
    (outcome,) = consumer.redrive()
    assert (outcome.status, ran) == ("failed", [])
    assert f"sealed with the key '{NAMES[OLD]}'" in outcome.reason
    assert list(store.letters()) == [before]
    assert statuses(consumed(store, OLD, handler=ran.append).redrive()) == ["done"]


def test_swapped_or_changed_dead_letters_do_not_open() -> None:
    store = MemoryStore()
    rejected(store, OLD, calls=[1, 2])
    one, two = store.letters()
    store.drop_letters([one.id, two.id])
    changed = two.event[:-1] + bytes([two.event[-1] ^ 1])
    mixed = [replace(one, event=two.event), replace(two, event=changed)]
    store.put_letters(mixed)
    ran: list[Job] = []
    consumer = consumed(store, OLD, handler=ran.append)
    assert ["moved here" in letter.reason for letter in consumer.letters()] == [True, True]
    assert statuses(consumer.redrive()) == ["failed", "failed"]
    assert ran == []
    assert list(store.letters()) == mixed


def test_the_unsealed_fields_of_a_sealed_dead_letter_are_ignored() -> None:
    store = MemoryStore()
    rejected(store, OLD)
    (kept,) = store.letters()
    store.drop_letters([kept.id])
    store.put_letters([replace(kept, status="conflict", rule="none", attempt=9)])
    (opened,) = consumed(store, OLD).letters()
    assert (opened.status, opened.rule, opened.attempt) == ("dead", "call", 1)


def test_an_event_that_only_looks_sealed_becomes_an_ordinary_dead_letter() -> None:
    store = MemoryStore()
    looks = MARK + b"\x03key" + bytes(40)
    consumer = consumed(store, OLD)
    assert statuses(consumer.process([looks])) == ["invalid"]
    (letter,) = consumer.letters()
    assert (letter.event, letter.reason.startswith("not JSON")) == (looks, True)
    assert "not opened" not in letter.reason
    (kept,) = store.letters()
    assert kept.reason == f"sealed with the key '{NAMES[OLD]}'"


def test_without_a_data_key_an_event_is_not_acknowledged_and_no_dead_letter_is_stored(
    counted: Sealer, key: CountedKey
) -> None:
    key.away = True
    store = MemoryStore()
    consumer = consumed(SealedStore(store, counted))
    (outcome,) = consumer.process([call(1)])
    assert (outcome.status, outcome.ack) == ("failed", False)
    assert "its dead letter could not be kept: the key is away" in outcome.reason
    assert list(store.letters()) == []
    key.away = False
    assert statuses(consumer.process([call(1)])) == ["dead"]
    assert len(list(consumer.letters())) == 1


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_dead_letter_that_waited_for_its_key_has_the_error_of_the_handler(
    counted: Sealer, key: CountedKey, attempts: int
) -> None:
    ran: list[int] = []

    def fail(job: Job) -> None:
        ran.append(job.attempt)
        raise LookupError("no such call")

    consumer = consumed(SealedStore(MemoryStore(), counted), handler=fail, attempts=attempts)
    key.away = True
    for _ in range(attempts + 2):
        (outcome,) = consumer.process([call(1)])
        assert (outcome.status, outcome.ack) == ("failed", False)
    key.away = False
    assert statuses(consumer.process([call(1)])) == ["dead"]
    (letter,) = consumer.letters()
    assert letter.reason == f"given up after {attempts + 3} attempts: LookupError: no such call"
    assert ran == list(range(1, attempts + 4))
    assert [one.reason for one in consumer.process([call(1)])] == ["was given up before"]


# Results


def test_a_result_is_stored_sealed_and_copies_get_the_result(store: Any) -> None:
    consumer = consumed(store, OLD, handler=lambda _: {"number": SECRET})
    (first,), (copy,) = consumer.process([call(1)]), consumer.process([call(1)])
    assert (copy.status, copy.result) == ("duplicate", first.result)
    record = store.show(first.key)
    assert record is not None
    assert SECRET.encode() not in record.result
    shown = consumer.admin.show(first.key)
    assert shown is not None
    assert shown.result == b'{"number":"+49 30 901820"}'
    assert consumer.admin.show(bytes(16)) is None


def test_a_result_with_its_own_time_to_keep_is_sealed_too(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    consumer = consumed(store, OLD, handler=lambda _: SECRET, keep_result="1h")
    consumer.process([call(1)])
    assert SECRET.encode() not in b"".join(it.read_bytes() for it in tmp_path.iterdir())
    assert consumer.process([call(1)])[0].result == SECRET


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "store.db")


def test_a_result_in_the_handlers_own_transaction_is_sealed(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")

    def handler(job: Job) -> str:
        job.connection.execute("CREATE TABLE IF NOT EXISTS mine (value)")
        job.connection.execute("INSERT INTO mine VALUES (1)")
        return SECRET

    consumer = consumed(store, OLD, handler=handler)
    (outcome,) = consumer.process([call(1)])
    assert outcome.status == "done"
    record = store.show(outcome.key)
    assert record is not None
    assert record.result is not None
    assert SECRET.encode() not in record.result
    assert consumer.process([call(1)])[0].result == SECRET


@pytest.mark.parametrize("keys", [(), (NEW,)])
@pytest.mark.parametrize("policy", ["retry", "run"])
def test_a_copy_whose_result_cannot_be_opened_is_a_duplicate_with_the_reason(
    keys: Sequence[str], policy: str
) -> None:
    store = MemoryStore()
    consumed(store, OLD, handler=lambda _: SECRET).process([call(1)])
    ran: list[Job] = []
    consumer = consumed(store, *keys, handler=ran.append, on_store_error=policy)
    (copy,) = consumer.process([call(1)])
    assert (copy.status, copy.result, ran) == ("duplicate", None, [])
    assert f"its result is sealed with the key '{NAMES[OLD]}', and not opened" in copy.reason


def test_a_result_of_another_key_is_not_served() -> None:
    store = MemoryStore()
    consumer = consumed(store, OLD, handler=lambda job: job.event.detail["call"])
    one, two = (outcome.key for outcome in consumer.process([call(1), call(2)]))
    records = store._records
    records[one] = replace(records[one], result=records[two].result)
    assert [it.result for it in consumer.process([call(1), call(2)])] == [None, 2]


def test_a_result_that_cannot_be_sealed_is_not_kept_and_its_event_is_done(
    counted: Sealer, key: CountedKey, caplog: pytest.LogCaptureFixture
) -> None:
    key.away = True
    store = MemoryStore()
    consumer = consumed(SealedStore(store, counted), handler=lambda _: SECRET)
    with caplog.at_level(logging.WARNING):
        assert statuses(consumer.process([call(1), call(2)])) == ["done", "done"]
    assert [it.result for it in consumer.process([call(1), call(2)])] == [None, None]
    assert caplog.text.count("a result is not kept for copies") == 1


# The wrapper


def test_a_sealed_store_implements_the_protocols_of_its_store_and_no_others(tmp_path: Path) -> None:
    wrapped = partial(SealedStore, sealer=Sealer([OLD]))
    memory, sqlite = wrapped(MemoryStore()), wrapped(SQLiteStore(tmp_path / "store.db"))
    assert offers(memory, StoreAdmin)
    assert not offers(memory, Transactional)
    assert offers(sqlite, Transactional)
    assert not offers(sqlite, AsyncTransactional)
    assert wrapped(MemoryStore()).embedded


def test_a_consumer_without_sealing_keys_uses_its_store_unwrapped() -> None:
    store = MemoryStore()
    assert consumed(store).store is store
    sealed = consumed(store, OLD)
    assert isinstance(sealed.store, SealedStore)
    assert consumed(sealed.store, OLD).store is sealed.store
    assert isinstance(sealed.over(MemoryStore()).store, SealedStore)


class Sink:
    def __init__(self) -> None:
        self.letters: list[Letter] = []

    def put_letters(self, letters: Sequence[Letter]) -> None:
        self.letters += letters

    def close(self) -> None:
        self.letters = []


def test_a_separate_sink_of_dead_letters_gets_sealed_dead_letters() -> None:
    sink = Sink()
    with Consumer(
        "memory:", rules=[ruled()], handler=reject, letters=sink, sealing_keys=[OLD]
    ) as consumer:
        consumer.process([call(1)])
        (letter,) = sink.letters
        assert letter.reason == f"sealed with the key '{NAMES[OLD]}'"
    assert sink.letters == []


# The command line


@pytest.fixture
def run(run: Run) -> Run:
    """The command line over a store with one sealed dead letter, and one result."""
    rejected(SQLiteStore("store.db"), OLD)
    consumed(SQLiteStore("store.db"), OLD, handler=lambda _: SECRET).process([call(2)])
    return run


def configured(*keys: str) -> None:
    Path("eventonce.toml").write_text(
        'store = "sqlite:///store.db"\nname = "crm"\n[[rule]]\nname = "call"\nkey = ["detail.call"]'
        f"\n[privacy]\nsealing_keys = {list(keys)}\n"
    )


def test_dead_letters_are_shown_exported_and_redriven_with_the_keys_of_the_file(run: Run) -> None:
    configured(NEW, OLD)
    assert SECRET in run("letters", "list").out
    (shown,) = run("letters", "show", "--json").documents
    assert shown["event"]["detail"]["caller"] == SECRET
    assert SECRET in run("letters", "export").out
    assert SECRET in run("letters", "redrive", "--handler", "-").out
    assert run("letters", "list").out == "no dead letters with --name=crm\n"


def test_without_the_key_dead_letters_are_listed_and_not_opened(run: Run) -> None:
    configured(NEW)
    (listed,) = run("letters", "list", "--json").documents
    assert (listed["status"], listed["rule"]) == ("dead", "call")
    assert f"sealed with the key '{NAMES[OLD]}'" in listed["reason"]
    redriven = run("letters", "redrive", "--handler", "-")
    assert (redriven.code, redriven.out) == (1, "")
    assert "failed  1" in redriven.err
    foretold = run("letters", "redrive", "--dry-run", "--json").documents[0]["letters"]
    assert [one["would"] for one in foretold] == ["failed"]
    (shown,) = run("letters", "show", "--json").documents
    assert shown["event"] is None
    assert "\\x" not in run("letters", "show").out
    exported = run("letters", "export")
    assert (exported.code, exported.out) == (1, "")
    assert "1 dead letter not opened" in exported.err
    missed = run("letters", "export", listed["id"], "nothing")
    assert "begins with 'nothing'" in missed.err
    assert "1 dead letter not opened" in missed.err
    configured(OLD)
    assert SECRET in run("letters", "list").out


@pytest.mark.parametrize(
    "asked",
    [
        "list --conversation",
        "show --type",
        "groups --reason",
        "drop --yes --group",
        "export --type",
    ],
)
def test_a_search_by_content_reports_the_dead_letters_that_could_not_be_opened(
    run: Run, asked: str
) -> None:
    """Without this report, an incomplete answer would look complete."""
    configured(NEW)
    found = run("letters", *asked.split(), "zzz")
    assert found.code == 1
    assert "1 dead letter not opened, and not compared" in found.err
    assert "no dead letters" not in found.out + found.err
    elsewhere = run("letters", *asked.split(), "zzz", "--rule", "another")
    assert "not opened" not in elsewhere.err


def test_reseal_seals_dead_letters_with_the_key_in_use(run: Run) -> None:
    rejected(SQLiteStore("store.db"), calls=[3])
    rejected(SQLiteStore("store.db"), NEW, calls=[4])
    rejected(SQLiteStore("store.db"), OTHER, calls=[5])
    configured(NEW, OLD)
    resealed = run("letters", "reseal")
    assert (resealed.code, resealed.out) == (1, "resealed 2 dead letters\n")
    assert "1 dead letter not opened" in resealed.err
    reasons = sorted(it.reason for it in SQLiteStore("store.db").letters())
    assert reasons == sorted(f"sealed with the key '{NAMES[it]}'" for it in (OTHER, NEW, NEW, NEW))
    configured(NEW, OTHER)
    assert run("letters", "reseal", "--json").documents == [{"resealed": 1}]
    configured(NEW)
    assert run("letters", "list").out.count(SECRET) == 4
    assert run("letters", "reseal").out == "resealed 0 dead letters\n"
    assert "a queue is not sealed again" in run("letters", "reseal", "--from", "sqs://q").err
    configured()
    assert "there is no key to seal with" in run("letters", "reseal").err


def test_doctor_tries_every_key(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # Set here, so that no other source of credentials is asked.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEVENTONCETESTS00")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
    monkeypatch.setattr("eventonce.privacy.keys.KMS_ATTEMPTS", 1)
    configured(NEW, "kms://alias/none?region=eu-central-1&endpoint=http://127.0.0.1:1")
    found = run("doctor").out
    assert f"ok       the sealing key {NAMES[NEW]} seals and opens" in found
    assert "FAILED   the sealing key kms://alias/none cannot be used" in found


def test_doctor_opens_a_dead_letter_of_every_key(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(NEW, OLD)
    under = f"a dead letter of crm under the key {NAMES[OLD]}"
    assert f"ok       {under} can be opened" in run("doctor").out
    for keys in ([NEW], []):
        configured(*keys)
        found = run("doctor")
        assert (found.code, f"FAILED   {under} cannot be opened" in found.out) == (1, True)
        assert "add this key to them, after the key in use" in found.out
    rejected(SQLiteStore("store.db"), NEW, calls=[3])
    configured(OLD)
    assert f"FAILED   a dead letter of crm under the key {NAMES[NEW]}" in run("doctor").out
    monkeypatch.setattr("eventonce.doctor.storage.MOST_LETTERS", 1)
    assert NAMES[NEW] not in run("doctor").out


@pytest.mark.skipif(os.name != "posix", reason="the permissions are those of POSIX")
def test_doctor_names_a_key_file_that_others_may_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TemporaryDirectory() as name:
        # The folder is open to all users; the folders of pytest are open to their owner only.
        Path(name).chmod(0o755)
        key = Path(name, "old.key")
        key.write_text(OLD)
        configured(f"${{file:{key}}}")
        what = f"everybody on this machine may read the key file {key}"
        for mode, said in (
            (0o600, "ok       not "),
            (0o640, "ok       not "),
            (0o644, "FAILED   "),
        ):
            key.chmod(mode)
            assert said + what in run("doctor").out
        with monkeypatch.context() as patch:
            # As a platform mounts a secret.
            patch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
            assert f"not checked: {what}, on a read-only volume" in run("doctor").out
        Path(name).chmod(0o700)
        assert f"ok       not {what}" in run("doctor").out


def test_a_wrong_key_is_reported_as_a_fault_of_the_file_without_its_text(run: Run) -> None:
    configured(OLD, "hunter2")
    checked = run("check")
    assert checked.code == 2
    assert "privacy.sealing_keys[1]: expected a key of 32 bytes" in checked.err
    assert "hunter2" not in checked.err


def test_a_dead_letter_that_is_dropped_during_a_reseal_stays_dropped() -> None:
    class Emptied(MemoryStore):
        """A store from which another program drops a dead letter in the middle of the reseal."""

        def put_letters(self, letters: Sequence[Letter]) -> None:
            super().put_letters(letters)
            if len(letters) == 2 and "~" in letters[0].id:
                self.drop_letters([letters[0].id.partition("~")[0]])

    store = Emptied()
    rejected(store, OLD, calls=(1,))
    rejected(store, OLD, calls=(2,))
    sealed = SealedStore(store, Sealer([NEW, OLD]))
    dropped, kept = sealed.letters()
    sealed.reseal([dropped, kept])
    assert [one.id for one in store.letters()] == [kept.id]
