"""The chart's schema refuses what it cannot honour, by name."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.deploy.rendering import CHART, helm, rendered


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"modle": {}}, "modle"),
        ({"mode": "both"}, "mode"),
        ({"accelerator": "gpu"}, "accelerator"),
        ({"drainSeconds": -1}, "drainSeconds"),
        ({"preStopSeconds": "10"}, "preStopSeconds"),
        ({"startupSeconds": 5}, "startupSeconds"),
        ({"model": {"path": "/etc/passwd"}}, "path"),
        ({"model": {"servedName": "a b"}}, "servedName"),
        ({"gateway": {"drain_timeout": 3}}, "drain_timeout"),
        ({"gateway": {"drain-timeout": 3}}, "drain-timeout"),
        ({"gateway": {"pre-stop-wait": 60}}, "pre-stop-wait"),
        ({"gateway": {"contract": ["server"]}}, "contract"),
        ({"autoscaling": {"minReplicas": 0}}, "minReplicas"),
        ({"service": {"port": 70000}}, "port"),
        ({"resources": {"limits": {"memory": "a lot"}}}, "memory"),
        ({"npu": {"count": 0}}, "count"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], complaint: str) -> None:
    result = helm(values)
    assert result.returncode == 1
    assert "don't meet the specifications of the schema" in result.stderr
    assert complaint in result.stderr


def test_every_value_of_the_file_is_in_the_schema_and_back() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = yaml.safe_load((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert set(values) == set(schema["properties"])


def test_the_chart_and_the_overlay_run_the_same_container() -> None:
    chart, overlay = rendered("helm/defaults").gateway, rendered("kustomize/embedded-cpu").gateway
    same = (
        "startupProbe",
        "readinessProbe",
        "livenessProbe",
        "lifecycle",
        "ports",
        "resources",
        "image",
        "securityContext",
        "volumeMounts",
    )
    assert {key: chart[key] for key in same} == {key: overlay[key] for key in same}


def test_the_chart_and_the_overlay_run_the_same_sidecar() -> None:
    chart, overlay = rendered("helm/sidecar"), rendered("kustomize/sidecar")
    (theirs,), (ours,) = (each.pod["initContainers"] for each in (overlay, chart))
    # Started before the gateway and ended after it.
    assert theirs["restartPolicy"] == ours["restartPolicy"] == "Always"
    for key in ("image", "command", "env", "resources", "securityContext", "volumeMounts"):
        assert ours[key] == theirs[key], key
    assert sorted(ours["args"]) == sorted(theirs["args"])
    assert sorted(chart.gateway["args"]) == sorted(overlay.gateway["args"])
