"""Secrets by reference: from the environment, a file, Parameter Store and Secrets Manager."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from eventonce.config import Config, load
from eventonce.errors import EventonceError
from tests.helpers import Run
from tests.servers.aws import emulated, ministack

SECRET = "a secret that is long enough"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with emulated(), ministack() as url:
        made = {"region_name": "eu-central-1", "endpoint_url": url}
        boto3.client("ssm", **made).put_parameter(
            Name="/crm/key", Value=SECRET, Type="SecureString"
        )
        secrets = boto3.client("secretsmanager", **made)
        secrets.create_secret(Name="plain", SecretString=SECRET)
        secrets.create_secret(Name="crm/db", SecretString='{"password": "p4ss", "port": 5432}')
        secrets.create_secret(Name="octets", SecretBinary=b"\0")
        yield f"region=eu-central-1&endpoint={url}"


def loaded(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "crm.toml"
    path.write_text(text)
    return load(path)


def test_each_reference_is_replaced_by_its_value(
    tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM_SECRET", SECRET)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    config = loaded(
        tmp_path,
        f"""
        store = "postgresql://me:${{secretsmanager:crm/db#password?{endpoint}}}@db.example:${{secretsmanager:crm/db#port?{endpoint}}}/crm"
        secrets = [
          "${{env:CRM_SECRET}} 1", "${{CRM_SECRET}} 2", "${{file:{tmp_path}/secret}} 3",
          "${{ssm:/crm/key?{endpoint}}} 4", "${{secretsmanager:plain?{endpoint}}} 5",
        ]
        """,
    )
    assert config.store == "postgresql://me:p4ss@db.example:5432/crm"
    assert config.secrets == [f"{SECRET} {number}" for number in range(1, 6)]


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("env:NOWHERE", "the environment has no variable NOWHERE"),
        ("file:/no/such/file", "the file /no/such/file cannot be read: No such file"),
        ("ssm:/crm/nothing?{endpoint}", "the parameter /crm/nothing: "),
        ("ssm:/crm/key?regoin=x", "the parameter /crm/key: there is no option 'regoin'"),
        ("secretsmanager:nothing?{endpoint}", "the secret nothing: "),
        ("secretsmanager:octets?{endpoint}", "the secret octets is binary"),
        ("secretsmanager:plain#field?{endpoint}", "the secret plain is not a JSON object"),
        ("secretsmanager:crm/db#user?{endpoint}", "the secret crm/db has no field 'user'"),
    ],
)
def test_a_reference_that_cannot_be_resolved_is_reported_with_its_line(
    tmp_path: Path, endpoint: str, reference: str, said: str
) -> None:
    with pytest.raises(EventonceError) as refused:
        loaded(tmp_path, f'name = "crm"\nstore = "${{{reference.format(endpoint=endpoint)}}}"')
    assert f"crm.toml:2: store: {said}" in str(refused.value)
    for secret in (SECRET, "p4ss"):
        assert secret not in str(refused.value)


def test_no_service_is_asked_to_check_a_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventonce.config.references.connect", None)
    path = tmp_path / "crm.toml"
    path.write_text(
        'store = "${ssm:/store}"\nsecrets = ["${ssm:/s}"]\n[worker]\nqueue = "${ssm:/queue}"\n'
        "concurrency = 5000"
    )
    told = run("check", path)
    assert [line.partition(": ")[2] for line in told.err.splitlines()] == [
        f"{path}:5: worker.concurrency: expected 1 to 1000, not 5000"
    ]
    path.write_text(
        'store = "${ssm:/store}"\nname = "crm"\nsecrets = ["${ssm:/s}"]\naudit = "${ssm:/a}/x"\n'
        '[[sink]]\nto = "${ssm:/sink}"\n[worker]\nqueue = "${ssm:/queue}"\n[infra]\nbus = "crm"\n'
        '[serve]\nhost = "0.0.0.0"\nwebhook_secrets = ["${ssm:/hook}"]\n'
    )
    told = run("check", path)
    assert (told.code, told.err) == (0, "")
