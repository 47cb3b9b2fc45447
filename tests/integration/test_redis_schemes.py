"""The schemes of a Redis store's URI: Valkey's names, a Unix socket, sentinels; and tokens of AWS
IAM for a password."""

from __future__ import annotations

import gc
import hashlib
import hmac
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import pytest
import redis

from eventonce.errors import ConfigError, StoreUnavailable
from eventonce.stores import check_uri, open_store
from eventonce.stores.redis import RedisStore
from eventonce.stores.redis.uri import Tokens
from eventonce.testing.cases.samples import fact, new_keys
from tests.helpers import PATIENCE, until
from tests.integration.test_redis_clients import fails_over, works
from tests.integration.test_redis_settings import encrypted
from tests.servers import free_port
from tests.servers.valkey import clustered, redis7, sentinel, serving, valkey

SECRET = "s3cr3t"


def _opened(uri: str) -> RedisStore:
    store = open_store(uri)
    assert isinstance(store, RedisStore)
    return store


def test_uri_schemes_with_the_name_valkey_work(tmp_path: Path) -> None:
    with serving() as node:
        store = _opened(f"valkey://127.0.0.1:{node.port}/1")
        works(store)
        store.close()
    with encrypted(tmp_path) as (port, certificate):
        store = _opened(f"valkeys://127.0.0.1:{port}?ssl_ca_certs={certificate}")
        works(store)
        assert "with TLS" in repr(store)
        store.close()
    with clustered() as cluster:
        store = _opened(cluster.uri.replace("redis", "valkey"))
        works(store)
        store.close()


@pytest.mark.parametrize("scheme", ["unix", "redis+unix", "valkey+unix"])
def test_a_unix_socket_leads_to_a_server(scheme: str, tmp_path: Path) -> None:
    path = tmp_path / "a socket"
    with serving(redis7, "--unixsocket", str(path), "--requirepass", SECRET) as node:
        where = f"{scheme}://:{SECRET}@{str(path).replace(' ', '%20')}"
        store = _opened(f"{where}?db=2&client_name=crm")
        works(store)
        claim = fact(*new_keys(1))
        store.claim([claim])
        assert repr(store) == f"RedisStore('Redis {path} (2)', prefix='eventonce')"
        client = redis.Redis(port=node.port, password=SECRET, db=2)
        assert client.dbsize() == 1
        client.close()
        store.close()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        _opened(where).claim([claim])


def test_a_uri_with_sentinels_leads_to_the_new_primary() -> None:
    with (
        serving() as first,
        serving(valkey, "--replicaof", f"127.0.0.1 {first.port}") as second,
        sentinel(first.port, "requirepass watch") as port,
    ):
        for node in (first, second):
            node.client().execute_command("ACL SETUSER crm on ~* +@all", f">{SECRET}")
        watching = redis.Redis(port=port, password="watch", socket_timeout=PATIENCE)
        # The first of the sentinels is away.
        where = f"127.0.0.1:{free_port()},127.0.0.1:{port}"
        store = _opened(f"redis+sentinel://crm:{SECRET}@{where}/events/3?sentinel_password=watch")
        until(lambda: second.client().info("replication")["master_link_status"] == "up")
        works(store)
        assert (
            repr(store) == f"RedisStore('Redis events of sentinels {where}/3', prefix='eventonce')"
        )
        fails_over(store, first, second, watching)
        works(store)
        store.close()
        watching.close()


def test_sentinels_and_their_primary_may_speak_tls(tmp_path: Path) -> None:
    with encrypted(tmp_path) as (primary, certificate):
        tls_port = free_port()
        settings = (
            *(f"tls-port {tls_port}", "tls-replication yes", "tls-auth-clients no"),
            *(f"tls-ca-cert-file {certificate}", f"tls-cert-file {certificate}"),
            f"tls-key-file {tmp_path}/key.pem",
        )
        with sentinel(primary, *settings, binary=redis7):
            uri = f"rediss+sentinel://127.0.0.1:{tls_port}/events?ssl_ca_certs={certificate}"
            store = _opened(uri)
            works(store)
            assert "with TLS" in repr(store)
            store.close()


def test_the_name_of_a_primary_that_no_sentinel_has_is_reported() -> None:
    with serving() as node, sentinel(node.port) as port:
        store = _opened(f"redis+sentinel://127.0.0.1:{port}/others")
        with pytest.raises(StoreUnavailable, match="no sentinel that answers knows a primary"):
            store.claim([fact(*new_keys(1))])
        store.close()


@pytest.mark.parametrize(
    "uri",
    [
        f"redis+sentinel://:{SECRET}@host",
        f"redis+sentinel://:{SECRET}@host/events/first",
        f"redis+sentinel:///events?sentinel_password={SECRET}",
        f"redis://host?sentinel_password={SECRET}",
        f"redis://:{SECRET}@host?db=1",
        f"unix://:{SECRET}@",
        f"unix://:{SECRET}@host/run/redis.sock",
        f"unix://:{SECRET}@/run/redis.sock?db=first",
        f"rediss+unix://:{SECRET}@/run/redis.sock",
        f"rediss://user:{SECRET}@host?iam=cache",
        f"rediss://:{SECRET}@host?iam=cache",
        "rediss://host?iam=cache",
        "redis://user@host?iam=cache",
        "rediss://user@host?iam=s3/cache",
        "rediss://user@host?iam=",
        "rediss://user@host?region=eu-west-1",
    ],
)
def test_a_uri_whose_parts_do_not_fit_together_is_refused_without_its_secret(uri: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_uri(uri)
    assert SECRET not in f"{refused.value}{refused.value.__context__!r}"


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    ("iam", "service", "more"),
    [
        ("cache", "elasticache", {}),
        ("serverless/cache", "elasticache", {"ResourceType": "ServerlessCache"}),
        ("memorydb/cache", "memorydb", {}),
    ],
)
@pytest.mark.parametrize(("region", "signed"), [("", "eu-central-1"), ("us-east-1", "us-east-1")])
def test_a_token_is_the_signed_request_to_connect(
    iam: str, service: str, more: dict[str, str], region: str, signed: str
) -> None:
    user, token = Tokens(iam, "crm-sync", region).get_credentials()
    assert user == "crm-sync"
    where, _, query = token.partition("?")
    assert where == "cache/"
    said = dict(parse_qsl(query))
    signature = said.pop("X-Amz-Signature")
    at = said["X-Amz-Date"]
    scope = f"{at[:8]}/{signed}/{service}/aws4_request"
    assert said == {
        "Action": "connect",
        "User": "crm-sync",
        **more,
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"AKIDEXAMPLE/{scope}",
        "X-Amz-Date": at,
        "X-Amz-Expires": "900",
        "X-Amz-SignedHeaders": "host",
        "X-Amz-Security-Token": "session",
    }
    assert signature == _signature(said, at, scope)


def _signature(query: dict[str, str], at: str, scope: str) -> str:
    """Signature Version 4 of a GET of `cache/`, as its specification has it."""
    words = "&".join(f"{quote(n, safe='')}={quote(v, safe='')}" for n, v in sorted(query.items()))
    request = f"GET\n/\n{words}\nhost:cache\n\nhost\n{hashlib.sha256().hexdigest()}"
    text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = b"AWS4wJalrXUtnFEMI"
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


@pytest.mark.usefixtures("credentials")
def test_each_connection_logs_in_with_a_token_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server accepts each token once, as if it had expired before the next connection."""
    with encrypted(tmp_path) as (port, certificate):
        admin: Any = redis.Redis("127.0.0.1", port, ssl=True, ssl_ca_certs=certificate)
        store = _opened(
            f"rediss://crm@127.0.0.1:{port}?iam=cache&timeout=60&connect_timeout=60&ssl_ca_certs={certificate}"
        )
        provider = store._server.nodes()[0].pool.connection_kwargs["credential_provider"]
        give, given = provider.get_credentials, []

        def told() -> tuple[str, str]:
            user, token = give()
            given.append(token)
            admin.execute_command("ACL SETUSER", user, "reset", "on", f">{token}", "~*", "+@all")
            return user, token

        monkeypatch.setattr(provider, "get_credentials", told)
        works(store)
        admin.client_kill_filter(_type="normal", skipme=True)
        works(store)
        assert len(given) == 2
        assert "X-Amz" not in repr(store)
        store.close()
        admin.close()


@pytest.mark.usefixtures("credentials")
def test_tokens_are_signed_after_a_garbage_collection() -> None:
    tokens = Tokens("cache", "crm", "eu-central-1")
    tokens.get_credentials()
    gc.collect()
    tokens.get_credentials()


def test_tokens_need_credentials_and_a_region(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "DEFAULT_REGION", "REGION", "PROFILE")
    for name in names:
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="region"):
        Tokens("cache", "crm", "").get_credentials()
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    with pytest.raises(ConfigError, match="credentials"):
        Tokens("cache", "crm", "").get_credentials()


def test_tokens_need_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventonce.aws.iam_tokens.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="boto3"):
        open_store("rediss://crm@host?iam=cache")
