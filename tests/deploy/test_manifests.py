"""What a cluster would be given: valid, safe, and true to the gateway that it starts."""

from __future__ import annotations

import json
import re
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from proxy import __version__, lifecycle
from proxy.cli import main
from proxy.listeners import Listener
from proxy.metrics import Metrics
from proxy.routes import ROUTES
from proxy.settings import Settings
from tests.deploy.rendering import ALL, Rendered, rendered

KUBERNETES = ("1.30.0", "1.34.0", "1.37.0")
"""From the oldest that the chart allows to the newest that the validator knows."""
CUSTOM_KINDS = {"ServiceMonitor"}
"""Kinds whose schema is not Kubernetes' own; checked by hand below."""


@pytest.fixture(params=ALL)
def case(request: pytest.FixtureRequest) -> Rendered:
    return rendered(request.param)


@pytest.fixture
def settings(
    case: Rendered, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Settings:
    """The settings that the real command line makes of the container's arguments."""
    return Settings(**effective(case, monkeypatch, capsys)["gateway"])


def effective(
    case: Rendered, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    command, *arguments = case.gateway["args"]
    assert command == "serve"
    for variable in case.gateway["env"]:
        if "value" in variable:
            monkeypatch.setenv(variable["name"], variable["value"])
    assert main(["settings", *arguments]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_valid_kubernetes(case: Rendered, version: str) -> None:
    for item in case.objects:
        if item["kind"] not in CUSTOM_KINDS:
            kubernetes_validate.validate(item, version, strict=True)


def test_the_validator_would_notice_a_wrong_field() -> None:
    item = json.loads(json.dumps(rendered(ALL[0]).one("Deployment")))
    item["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(item, KUBERNETES[0], strict=True)


def test_a_model_is_served_on_the_port_that_the_service_reaches(
    case: Rendered, settings: Settings
) -> None:
    ports = {port["name"]: port["containerPort"] for port in case.gateway["ports"]}
    assert settings.host == "0.0.0.0"
    assert ports == {"api": settings.port, "metrics": settings.metrics_port}
    for port in case.one("Service")["spec"]["ports"]:
        assert port["targetPort"] in ports


def test_probes_ask_routes_that_exist(case: Rendered, settings: Settings) -> None:
    assert settings.management_port is None
    served = {
        route.path
        for route in ROUTES
        if route.method == "GET" and route.listener is not Listener.METRICS
    }
    paths = {
        name: case.gateway[name]["httpGet"]["path"]
        for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert set(paths.values()) <= served
    assert paths["livenessProbe"] == "/v2/health/live"
    assert paths["startupProbe"] == paths["readinessProbe"] == "/v2/health/ready"


def test_probes_leave_a_model_time_to_load_and_load_no_reason_to_restart(case: Rendered) -> None:
    startup, ready, live = (
        case.gateway[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")
    )
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    assert live["periodSeconds"] * live["failureThreshold"] >= 60
    assert ready["periodSeconds"] * ready["failureThreshold"] <= 10
    for probe in (startup, ready, live):
        assert probe["timeoutSeconds"] < probe["periodSeconds"]
    deadline = case.one("Deployment")["spec"]["progressDeadlineSeconds"]
    assert deadline > startup["periodSeconds"] * startup["failureThreshold"]


def test_the_grace_period_holds_pre_stop_and_drain(case: Rendered, settings: Settings) -> None:
    wait = case.gateway["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed = wait + settings.pre_stop_wait + settings.drain_timeout + lifecycle.CLOSING
    assert case.pod["terminationGracePeriodSeconds"] >= needed
    # The endpoint is withdrawn while SIGTERM waits: longer than readiness takes to notice.
    assert wait >= case.gateway["readinessProbe"]["periodSeconds"]


def test_nothing_runs_as_root_or_writes_to_its_root(case: Rendered) -> None:
    pod = case.pod["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] > 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in case.containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert case.pod["automountServiceAccountToken"] is False
    assert not case.pod.get("hostNetwork")
    assert not case.pod.get("hostIPC")


def test_what_must_be_written_is_mounted_and_the_model_cannot_be(case: Rendered) -> None:
    volumes = {volume["name"]: volume for volume in case.pod["volumes"]}
    for container in case.containers:
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        home = next(item["value"] for item in container["env"] if item["name"] == "HOME")
        for path in (home, "/tmp"):
            assert "emptyDir" in volumes[mounts[path]["name"]]
        for mount in mounts.values():
            writable = "emptyDir" in volumes[mount["name"]]
            assert writable or mount["readOnly"] is True


def test_secrets_are_mounted_where_the_gateway_looks_for_them(
    case: Rendered, settings: Settings
) -> None:
    mounts = {mount["mountPath"]: mount["name"] for mount in case.gateway["volumeMounts"]}
    secrets = {volume["name"] for volume in case.pod["volumes"] if "secret" in volume}
    names = ("tls_cert_file", "tls_key_file", "api_keys_file", "management_keys_file")
    files = [file for name in names if (file := getattr(settings, name)) is not None]
    assert {mounts[str(file.parent)] for file in files} == secrets


def test_probes_and_prometheus_speak_as_the_gateway_does(
    case: Rendered, settings: Settings
) -> None:
    secure = settings.tls_cert_file is not None
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert case.gateway[name]["httpGet"]["port"] == "api"
        assert case.gateway[name]["httpGet"].get("scheme", "HTTP") == (
            "HTTPS" if secure else "HTTP"
        )
    if case.has("ServiceMonitor"):
        (endpoint,) = case.one("ServiceMonitor")["spec"]["endpoints"]
        assert endpoint.get("scheme", "http") == ("https" if secure else "http")
        assert ("authorization" in endpoint) == (settings.management_keys_file is not None)


def test_services_of_the_namespace_do_not_become_settings(case: Rendered) -> None:
    # A Service "mindie-gateway" would set MINDIE_GATEWAY_PORT=tcp://10.0.0.1:1025.
    assert case.pod["enableServiceLinks"] is False


def test_everything_selects_the_pods_of_the_deployment(case: Rendered) -> None:
    labels = case.one("Deployment")["spec"]["template"]["metadata"]["labels"].items()
    selectors = [case.one("Deployment")["spec"]["selector"]["matchLabels"]]
    selectors.append(case.one("Service")["spec"]["selector"])
    if case.has("PodDisruptionBudget"):
        selectors.append(case.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"])
    if case.has("NetworkPolicy"):
        selectors.append(case.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"])
    for selector in selectors:
        assert selector
        assert selector.items() <= labels


def test_the_autoscaler_reads_a_metric_that_exists(case: Rendered) -> None:
    if not case.has("HorizontalPodAutoscaler"):
        assert case.one("Deployment")["spec"]["replicas"] >= 1
        return
    spec = case.one("HorizontalPodAutoscaler")["spec"]
    assert spec["scaleTargetRef"]["name"] == case.one("Deployment")["metadata"]["name"]
    assert spec["minReplicas"] <= spec["maxReplicas"]
    (metric,) = spec["metrics"]
    name = metric["pods"]["metric"]["name"]
    assert f"\n{name} " in Metrics().render().decode()
    assert "replicas" not in case.one("Deployment")["spec"]


def test_a_disruption_never_waits_for_ever(case: Rendered) -> None:
    if case.has("PodDisruptionBudget"):
        assert case.one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_prometheus_scrapes_a_port_and_a_route_that_exist(case: Rendered) -> None:
    if not case.has("ServiceMonitor"):
        return
    spec = case.one("ServiceMonitor")["spec"]
    labels = case.one("Service")["metadata"]["labels"].items()
    assert spec["selector"]["matchLabels"].items() <= labels
    (endpoint,) = spec["endpoints"]
    assert endpoint["port"] == "metrics"
    assert "metrics" in {port["name"] for port in case.one("Service")["spec"]["ports"]}
    assert endpoint["path"] in {r.path for r in ROUTES if r.listener is Listener.METRICS}
    assert seconds(endpoint["scrapeTimeout"]) <= seconds(endpoint["interval"])


def seconds(duration: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([sm])", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]


def test_the_network_is_closed_but_for_clients_monitoring_and_dns(case: Rendered) -> None:
    if not case.has("NetworkPolicy"):
        return
    spec = case.one("NetworkPolicy")["spec"]
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    assert all(rule["from"] for rule in spec["ingress"])
    clients, monitoring = ([port["port"] for port in rule["ports"]] for rule in spec["ingress"])
    assert (clients, monitoring) == (["api"], ["metrics"])
    (dns,) = spec["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}


def test_our_images_carry_the_version_of_this_source(case: Rendered) -> None:
    name, _, tag = case.gateway["image"].partition(":")
    assert name.startswith("mindie-gateway-")
    assert tag == __version__


def test_npus_come_with_shared_memory_and_the_drivers_files(case: Rendered) -> None:
    for container in case.containers:
        limits = container["resources"]["limits"]
        npus = {name: count for name, count in limits.items() if "/Ascend" in name}
        paths = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert bool(npus) == ("/dev/shm" in paths)
        if npus:
            assert npus.items() <= container["resources"]["requests"].items()
            assert paths >= {
                "/usr/local/Ascend/driver/lib64",
                "/usr/local/Ascend/driver/version.info",
                "/etc/ascend_install.info",
                "/usr/local/dcmi",
                "/usr/local/bin/npu-smi",
            }


def test_ascend_is_covered_at_all() -> None:
    assert any("huawei.com/Ascend910" in rendered(name).text for name in ALL)
