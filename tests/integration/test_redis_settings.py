"""The errors of the Redis store about wrong settings, and the secrets that it never names."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis
import redis.asyncio

from eventonce.core.ports import Stats, StoreSchema, offers
from eventonce.errors import ConfigError, EventonceError, StoreMismatch, StoreUnavailable
from eventonce.stores import check_uri
from eventonce.stores.redis import RedisStore
from eventonce.testing.cases.samples import fact, new_keys, new_letters
from eventonce.types import Claim
from tests.helpers import until
from tests.servers import free_port
from tests.servers.sns import self_signed
from tests.servers.valkey import Node, clustered, low_port, redis7, serving, valkey

SECRET = "s3cr3t"


def _claim() -> Claim:
    return fact(*new_keys(1))


def _refused(uri: str, *says: str) -> None:
    store = RedisStore.from_uri(uri)
    with pytest.raises(ConfigError) as refused:
        store.claim([_claim()])
    assert all(word in str(refused.value) for word in says), str(refused.value)
    assert SECRET not in f"{refused.value}{refused.value!r}{store!r}"
    store.close()


@contextmanager
def _answering(said: bytes) -> Iterator[int]:
    """A port where every client gets these bytes as its answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    line, _ = listening.accept()
                except OSError:
                    return
                with line, suppress(OSError):
                    line.recv(4096)
                    line.sendall(said)
                    # If the socket closed with unread bytes, the client might lose the answer.
                    line.shutdown(socket.SHUT_WR)
                    while line.recv(4096):
                        pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(
    "uri",
    [
        f"redis://user:{SECRET}@host:port/0",
        f"redis://:{SECRET}/more@host/0",
        f"redis://:{SECRET}?more@host/0",
        f"redis://:{SECRET}#more@host/0",
        f"redis://:1{SECRET}@[host/0",
        f"redis://{SECRET}@/0",
        f"redis://user:{SECRET}@host/first",
        f"redis://user:{SECRET}@host/-1",
        f"redis://host?password={SECRET}",
        f"redis://user:{SECRET}@host?timeout=never",
        f"redis://user:{SECRET}@host?timeout=0",
        f"redis://user:{SECRET}@host?wait_replicas=-1",
        f"redis://user:{SECRET}@host?ssl_ca_certs=ca.pem",
        f"redis://user:{SECRET}@one,two",
        f"redis+cluster://user:{SECRET}@one,two/1",
        f"redis+sentinel://user:{SECRET}@host",
        f"http://user:{SECRET}@host",
    ],
)
def test_the_error_of_an_invalid_uri_does_not_show_the_password(uri: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RedisStore.from_uri(uri)
    said = "".join(traceback.format_exception(refused.value, chain=True))
    assert SECRET not in f"{said}{refused.value!r}{refused.value.__context__!r}"


def test_the_options_of_a_uri_reach_the_driver() -> None:
    uri = "rediss://me%40here:p%2Fw@[::1]:7000/3?timeout=1.5&connect_timeout=0.5&ssl_cert_reqs=none"
    store = RedisStore.from_uri(uri)
    options = store._server._client.connection_pool.connection_kwargs  # type: ignore[union-attr]
    expected = {
        "username": "me@here",
        "password": "p/w",
        "host": "::1",
        "port": 7000,
        "db": 3,
        "socket_timeout": 1.5,
        "socket_connect_timeout": 0.5,
        "ssl_cert_reqs": "none",
    }
    assert {name: options[name] for name in expected} == expected
    assert repr(store) == "RedisStore('Redis [::1]:7000/3 with TLS', prefix='eventonce')"
    store.close()


def test_no_secret_is_logged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for scheme in ("redis", "rediss", "redis+cluster"):
        uri = f"{scheme}://user:{SECRET}@127.0.0.1:{node.port}?timeout=0.2&connect_timeout=0.2"
        with pytest.raises(EventonceError):
            RedisStore.from_uri(uri).claim([_claim()])
    assert SECRET not in caplog.text


@pytest.mark.parametrize("prefix", ["", "{mine}", "mine{", "}"])
def test_an_empty_prefix_or_a_prefix_with_braces_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        RedisStore(redis.Redis(), prefix=prefix)
    # `eventonce check` opens no store.
    with pytest.raises(ConfigError, match=r"redis://host.*prefix"):
        check_uri(f"redis://host?prefix={prefix}")


def test_an_asyncio_client_is_refused() -> None:
    client: redis.Redis = redis.asyncio.Redis()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"redis\.asyncio"):
        RedisStore(client)


def test_a_wrong_password_is_a_wrong_setting_and_is_not_shown() -> None:
    with serving(valkey, "--requirepass", "right") as node:
        for user in ("", f":{SECRET}@", f"somebody:{SECRET}@"):
            _refused(f"redis://{user}127.0.0.1:{node.port}", "password")
        store = RedisStore.from_uri(f"redis://:right@127.0.0.1:{node.port}")
        assert store.claim([_claim()])[0].kind == "run"
        store.close()


def test_the_error_of_a_missing_permission_names_the_page_with_the_rights(node: Node) -> None:
    node.client().acl_setuser("weak", enabled=True, nopass=True, keys=["*"], commands=["+get"])
    uri = f"redis://weak:{SECRET}@127.0.0.1:{node.port}"
    _refused(uri, "lacks a permission", "docs/stores/redis.md")


def test_a_database_that_does_not_exist_is_a_wrong_setting(node: Node) -> None:
    _refused(f"{node.uri}/4096", "no such database")


def test_a_prefix_that_another_application_uses_is_refused(node: Node) -> None:
    prefix = secrets.token_hex(4)
    node.client().set(f"{prefix}:{{letters}}", "a string")
    store = RedisStore(node.client(), prefix=prefix)
    with pytest.raises(StoreMismatch, match="another application"):
        store.put_letters(new_letters(1))


def test_a_server_of_another_kind_is_a_wrong_setting() -> None:
    with _answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        _refused(f"redis://127.0.0.1:{port}", "is not Redis")


def test_a_server_without_a_cluster_is_a_wrong_setting(node: Node) -> None:
    _refused(f"redis+cluster://127.0.0.1:{node.port}", "not part of a cluster", "redis://")


def test_a_server_of_a_cluster_is_a_wrong_setting() -> None:
    with serving(valkey, "--cluster-enabled", "yes", port=low_port()) as node:
        node.client().execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
        store = RedisStore.from_uri(node.uri)
        with pytest.raises(ConfigError, match=r"redis\+cluster://"):
            store.claim([fact(key) for key in new_keys(100)])


def test_tls_needs_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    with encrypted(tmp_path) as (port, certificate):
        uri = f"rediss://127.0.0.1:{port}"
        store = RedisStore.from_uri(f"{uri}?ssl_ca_certs={certificate}")
        assert store.claim([_claim()])[0].kind == "run"
        store.close()
        _refused(uri, "no secure connection", "ssl_ca_certs")


@pytest.mark.parametrize("certificates", ["no", "yes"])
def test_a_server_with_tls_is_reported_where_the_uri_is_without_tls(
    tmp_path: Path, certificates: str
) -> None:
    with encrypted(tmp_path, certificates) as (port, _):
        for uri in ("redis://{}", "redis+cluster://{}", "redis+sentinel://{}/events"):
            _refused(uri.format(f":{SECRET}@127.0.0.1:{port}"), "speaks TLS", "rediss://")


@contextmanager
def encrypted(folder: Path, certificates: str = "no") -> Iterator[tuple[int, str]]:
    """The port of a server with TLS, and the file of its certificate. `certificates` says whether
    the server asks its clients for one."""
    certificate, key = map(str, self_signed(folder))
    port = free_port()
    tls = (
        *("--tls-port", str(port), "--tls-auth-clients", certificates),
        *("--tls-ca-cert-file", certificate),
        *("--tls-cert-file", certificate, "--tls-key-file", key),
    )
    with serving(redis7, *tls):
        yield port, certificate


def test_a_check_finds_wrong_settings_of_the_server(tmp_path: Path) -> None:
    with serving(valkey, "--appendonly", "yes") as node:
        store = RedisStore.from_uri(node.uri)
        assert offers(store, StoreSchema)
        assert store.create() == store.migrate() == []
        findings = store.check()
        assert [found for found in findings if not found.fine] == []
        assert any("Valkey 9" in found.what for found in findings)
        assert store.stats() == Stats(records=0, letters=0)
        client = node.client()
        for name, value in (("maxmemory", 10**9), ("maxmemory-policy", "volatile-lru")):
            client.config_set(name, value)
        client.config_set("appendonly", "no")
        fixes = " ".join(found.fix for found in store.check())
        assert "noeviction" in fixes
        assert "appendonly yes" in fixes
        store.close()
        waiting = RedisStore(client, wait_replicas=1, timeout=1)
        assert ["wait_replicas" in found.fix for found in waiting.check()] == [True]
        waiting.close()
    gone = RedisStore.from_uri(node.uri)
    for look in (gone.check, gone.create, gone.migrate):
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            look()


def test_a_check_with_a_wrong_password_is_a_wrong_setting() -> None:
    with serving(valkey, "--requirepass", "right") as node:
        for look in ("check", "create", "migrate"):
            store = RedisStore.from_uri(f"redis://:{SECRET}@127.0.0.1:{node.port}")
            with pytest.raises(ConfigError, match="password is refused"):
                getattr(store, look)()
            store.close()


def test_a_check_of_a_cluster_covers_all_its_servers() -> None:
    with clustered() as cluster:
        store = RedisStore.from_uri(f"{cluster.uri}?wait_replicas=1")
        # A replica that is slow to confirm is reported, too, and is fine a moment later.
        until(lambda: all(found.fine for found in store.check()))
        cluster.nodes[1].client().config_set("maxmemory", 10**9)
        cluster.nodes[1].client().config_set("maxmemory-policy", "allkeys-lru")
        until(lambda: [found.fix[:4] for found in store.check() if not found.fine] == ["set "])
        store.close()
