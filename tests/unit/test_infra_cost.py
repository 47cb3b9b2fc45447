"""The calculations of docs/cost.md, repeated."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from eventonce import Rule
from eventonce.config import WorkerTable
from eventonce.infra.template import CONSUMER

PAGE = (Path(__file__).parents[2] / "docs" / "cost.md").read_text()
SUMS = re.findall(r"`([\d,.]+ [^`=]*) = ([\d,.]+)`", PAGE)


def calculated(text: str) -> float:
    plain = text.replace(",", "").replace("\N{MULTIPLICATION SIGN}", "*")
    assert re.fullmatch(r"[\d.*/+ ]+", plain), text
    return float(eval(compile(ast.parse(plain, mode="eval"), "sum", "eval")))


@pytest.mark.parametrize(("sum_", "shown"), SUMS)
def test_each_calculation_gives_the_shown_number(sum_: str, shown: str) -> None:
    number = shown.replace(",", "")
    places = len(number.partition(".")[2])
    assert f"{calculated(sum_):.{places}f}" == number


def test_the_table_at_the_top_shows_the_same_numbers() -> None:
    assert len(SUMS) > 20
    said = dict(re.findall(r"\| ([\w, ]+?) \| \$?([\d.]+)", PAGE.partition("## The")[0]))
    found = {float(shown.replace(",", "")) for _, shown in SUMS}
    for what, digits in (
        ("DynamoDB, requests", 2),
        ("DynamoDB, storage", 2),
        ("SQS, standard", 2),
        ("SQS, FIFO", 2),
        ("Redis", 0),
        ("PostgreSQL", 0),
        ("SQLite", 0),
    ):
        assert float(said[what]) in {round(number, digits) for number in found}, what
    copies = dict(re.findall(r"\| ([\w, ]+?) \| \$[\d.]+ \| \$([\d.]+ to \$[\d.]+)", PAGE))
    assert copies["DynamoDB, requests"] == "0.13 to $0.75", "1 read unit, or 1 write and 1 read"
    store, lambdas = 1.25 + 0.0221, 0.02 + 0.0333
    whole = store + 0.48 + 1.00 + lambdas
    assert f"about ${whole:.2f}, of which knowing copies is ${store:.2f}" in PAGE


def test_the_page_calculates_with_the_defaults() -> None:
    assert Rule(name="any", key="detail.id").remember == 10 * 86_400_000
    for said in ("BatchSize: 10", "MemorySize: 256", "ReceiveMessageWaitTimeSeconds: 20"):
        assert said in CONSUMER.cloudformation
    assert WorkerTable().wait == "5s"
    assert "every five seconds (`wait`)" in PAGE
