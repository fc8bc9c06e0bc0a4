"""The dashboard and the alert rules ask for metrics that exist, in PromQL that Prometheus takes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.metrics import Metrics
from tests.deploy.rendering import DEPLOY, ROOT

MONITORING = DEPLOY / "monitoring"
ALERTS = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}


def existing() -> dict[str, set[str]]:
    """Every series name of the gateway, with its labels."""
    found: dict[str, set[str]] = {}
    for collector in Metrics().registry._collector_to_names:
        (family,) = collector.describe()
        labels = set(getattr(collector, "_labelnames", ()))
        for suffix in SUFFIXES[family.type]:
            found[family.name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    return found


def named(expression: str) -> set[str]:
    return set(re.findall(r"\bmindie_gateway_\w+", expression))


def labels(expression: str) -> set[str]:
    """The labels that an expression selects or groups by."""
    selected = re.findall(r'(\w+)=~?"', expression)
    grouped = re.findall(r"(?:by|on) \(([^)]*)\)", expression)
    return {*selected, *(name.strip() for names in grouped for name in names.split(","))}


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *(rule["expr"] for rule in RULES)])
def test_only_metrics_and_labels_that_exist_are_asked_for(expression: str) -> None:
    series = existing()
    assert named(expression)
    assert named(expression) <= series.keys()
    # What Prometheus adds itself.
    known = set().union(*(series[name] for name in named(expression))) | {"instance"}
    assert labels(expression) <= known


def test_the_check_would_notice() -> None:
    assert named("rate(mindie_gateway_nonsense_total[5m])") - existing().keys()
    assert labels('sum by (rout) (x{statuz="1"})') == {"rout", "statuz"}


@pytest.mark.parametrize(
    "metric",
    [
        "time_to_first_token_seconds_bucket",
        "time_per_output_token_seconds_bucket",
        "requests_running",
        "requests_waiting",
        "requests_cancelled_total",
        "errors_total",
        "legacy_requests_total",
    ],
)
def test_the_dashboard_shows_what_an_operator_looks_for(metric: str) -> None:
    assert any(f"mindie_gateway_{metric}" in named(each) for each in EXPRESSIONS)


def test_panels_do_not_lie_on_each_other() -> None:
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in DASHBOARD["panels"]]
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(set(numbers)) == len(DASHBOARD["panels"])


def test_every_alert_has_a_severity_a_summary_and_a_test() -> None:
    tests = yaml.safe_load((MONITORING / "alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
    fired = {
        check["alertname"]
        for test in tests
        for check in test["alert_rule_test"]
        if check["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in RULES}
    for rule in RULES:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"]


def promtool(*arguments: str) -> None:
    path = f"{ROOT / '.cache/promtool/usr/bin'}{os.pathsep}{os.environ['PATH']}"
    program = shutil.which("promtool", path=path)
    assert program is not None, "promtool is not here: see `make test-deploy`"
    done = subprocess.run(
        [program, *arguments], cwd=MONITORING, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_rules() -> None:
    promtool("check", "rules", "alerts.yaml")


def test_promtool_sees_each_alert_fire_when_it_should() -> None:
    promtool("test", "rules", "alerts_test.yaml")


def test_promtool_takes_the_dashboards_expressions(tmp_path: Path) -> None:
    variables = {"$__rate_interval": "5m", "$instance": ".*"}
    rules: list[dict[str, Any]] = []
    for number, expression in enumerate(EXPRESSIONS):
        for name, value in variables.items():
            expression = expression.replace(name, value)  # noqa: PLW2901
        rules.append({"record": f"panel:{number}", "expr": expression})
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", str(file))
