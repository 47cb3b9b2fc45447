"""The alert rules and the dashboard: the rules fire only when they should, and every query asks for
existing metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from eventonce.core.status import MEANINGS
from eventonce.metrics import names
from tests.docs.reference import commands
from tests.servers import missing

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
CASES = ROOT / "tests" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "eventonce.json"

RULES = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
BOARD = json.loads(DASHBOARD.read_text())
TARGETS = [target for panel in BOARD["panels"] for target in panel["targets"]]
QUERIES = [rule["expr"] for rule in RULES] + [target["expr"] for target in TARGETS]

PARTS = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
SERIES = {f"{one.name}{part}": one for one in names.METRICS for part in PARTS[one.kind]}


def promtool(*words: str | Path) -> None:
    program = shutil.which("promtool")
    if not program:
        missing("promtool: apt-get install prometheus")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alert_rules_fire_only_when_they_should() -> None:
    promtool("check", "rules", ALERTS)
    promtool("test", "rules", CASES)


def test_prometheus_can_read_every_query_of_the_dashboard(tmp_path: Path) -> None:
    queries = [target["expr"].replace("$__rate_interval", "5m") for target in TARGETS]
    rules = [{"record": f"query:{at}", "expr": expr} for at, expr in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", file)


def test_every_alert_has_a_case_that_fires_and_a_case_that_is_silent() -> None:
    text = CASES.read_text()
    for rule in RULES:
        assert f'alertname="{rule["alert"]}", alertstate="firing"' in text
        assert f"alertname: {rule['alert']}, exp_alerts: []" in text


def test_every_query_asks_for_existing_metrics_and_labels() -> None:
    for query in QUERIES:
        asked = re.findall(r"(eventonce_\w+)(?:\{(.*?)\})?", query)
        assert asked
        for name, selector in asked:
            metric = SERIES[name]
            known = {"consumer", *metric.labels}
            matched = dict(re.findall(r"(\w+)\s*[!=]=?~?\s*\"(.*?)\"", selector))
            assert matched.keys() <= known, query
            assert set(matched.get("status", "done").split("|")) <= set(MEANINGS)
            assert matched.get("cause", "store") in names.CAUSES
            for by in re.findall(r"by \((.*?)\)", query):
                assert set(by.split(", ")) <= {"le", *known}, query


def test_the_series_of_the_cases_have_existing_names_labels_and_bounds() -> None:
    for name, labels in re.findall(r"series: '(\w+)\{(.*?)\}'", CASES.read_text()):
        found = dict(re.findall(r"(\w+)=\"(.*?)\"", labels))
        assert found.keys() <= {"consumer", "le", *SERIES[name].labels}
        if "le" in found:
            assert float(found["le"]) in {*SERIES[name].bounds, float("inf")}


def test_every_metric_is_on_the_dashboard() -> None:
    shown = set(re.findall(r"eventonce_\w+", " ".join(target["expr"] for target in TARGETS)))
    assert {SERIES[name] for name in shown} == set(names.METRICS)


def test_every_command_of_an_alert_exists() -> None:
    known = {name for name, _ in commands()}
    said = re.findall(r"`eventonce ([a-z ]+)`", ALERTS.read_text())
    assert said
    assert set(said) <= known


def lost(given: Any, kept: Any, place: str = "") -> Iterator[str]:
    """The paths whose value differs from the given value."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            if name in kept:
                yield from lost(value, kept[name], f"{place}.{name}")
            else:
                yield f"{place}.{name}"
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for at, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{place}[{at}]")
    elif given != kept:
        yield place


def read_by_grafana(board: Any) -> Any:
    """The dashboard as Grafana's own types read it: fields that they do not have are lost."""
    register_default_plugins()
    return json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))


def test_grafanas_own_types_have_every_field_of_the_dashboard() -> None:
    assert list(lost(BOARD, read_by_grafana(BOARD))) == []


def test_a_misspelt_field_in_the_dashboard_is_found() -> None:
    board = json.loads(DASHBOARD.read_text())
    panel = board["panels"][6]
    panel["gridpos"] = panel["options"]["legnd"] = panel["targets"][0]["exprr"] = "a slip"
    slips = [".panels[6].gridpos", ".panels[6].options.legnd", ".panels[6].targets[0].exprr"]
    assert sorted(lost(board, read_by_grafana(board))) == sorted(slips)


def test_only_queries_about_seconds_are_shown_in_seconds() -> None:
    for panel in BOARD["panels"]:
        field = panel["fieldConfig"]
        others = {
            one["matcher"]["options"]: {found["id"]: found["value"] for found in one["properties"]}
            for one in field["overrides"]
        }
        for target in panel["targets"]:
            units = {**field["defaults"], **others.get(target["legendFormat"], {})}
            assert (units["unit"] == "s") == ("_seconds_" in target["expr"]), panel["title"]


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    cells = [
        (x, y)
        for one in places
        for x in range(one["x"], one["x"] + one["w"])
        for y in range(one["y"], one["y"] + one["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(places)
