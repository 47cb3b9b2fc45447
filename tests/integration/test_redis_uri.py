"""The URI of a Redis store: mistakes are reported when it is opened, without a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventonce.errors import ConfigError
from eventonce.stores import check_uri, open_store
from eventonce.stores.redis import RedisStore
from eventonce.testing.cases.samples import fact, new_keys
from tests.servers.valkey import serving

SECRET = "s3cr3t"


def refusal(uri: str) -> str:
    with pytest.raises(ConfigError) as refused:
        open_store(uri)
    assert SECRET not in f"{refused.value}{refused.value.__context__!r}"
    return str(refused.value)


@pytest.mark.parametrize("user", ["", f":{SECRET}@"])
def test_an_unknown_option_is_reported_with_the_known_options(user: str) -> None:
    said = refusal(f"redis://{user}host/0?prefix=mine&bogus={SECRET}")
    assert "no option 'bogus'" in said
    assert "wait_replicas" in said


@pytest.mark.parametrize(
    "uri",
    [
        f"redis://:half?{SECRET}@host/0",
        f"redis://:half?{SECRET}=1@host/0",
        f"redis://:half@more?{SECRET}@host/0",
        f"redis://host?{SECRET}%20{SECRET}",
    ],
)
def test_no_part_of_a_password_with_a_question_mark_is_shown(uri: str) -> None:
    assert "half" not in refusal(uri)


@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster"])
@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_a_missing_tls_file_is_a_wrong_setting_and_no_outage(
    scheme: str, option: str, tmp_path: Path
) -> None:
    uri = f"{scheme}://:{SECRET}@host?{option}={tmp_path}/none.pem"
    assert f"{option}={tmp_path}/none.pem: there is no such file" in refusal(uri)
    # A configuration that is only checked may be for another machine, which has the file.
    check_uri(uri)


def test_an_unknown_value_of_ssl_cert_reqs_is_refused() -> None:
    check_uri("rediss://host?ssl_cert_reqs=required")
    refusal("rediss://host?ssl_cert_reqs=perhaps")


@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster"])
@pytest.mark.parametrize("option", ["ssl_ca_certs={}", "ssl_certfile={}&ssl_keyfile={}"])
def test_a_file_that_holds_no_certificate_is_a_wrong_setting_and_no_outage(
    scheme: str, option: str, tmp_path: Path
) -> None:
    file = tmp_path / "text.pem"
    file.write_text("no certificate")
    with serving() as node:
        uri = f"{scheme}://127.0.0.1:{node.port}?{option.format(file, file)}"
        store = RedisStore.from_uri(uri)
        with pytest.raises(ConfigError, match="no secure connection"):
            store.claim([fact(*new_keys(1))])
        store.close()
