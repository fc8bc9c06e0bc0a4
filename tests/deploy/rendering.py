"""The manifests as a cluster would get them, rendered by the tools' own engines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
OVERLAYS: Final = tuple(
    sorted(path.parent.name for path in DEPLOY.glob("kubernetes/overlays/*/kustomization.yaml"))
)
CHART: Final = DEPLOY / "helm" / "mindie-gateway"
CHART_CASES: Final[dict[str, dict[str, Any]]] = {
    "defaults": {},
    "ascend": {
        "accelerator": "ascend",
        "model": {"claimName": "model", "path": "/models/llama3-70b", "servedName": "llama3-70b"},
        "gateway": {"contract": "server", "full-text": True, "triton-dialect": False},
        "gatewayEnv": [{"name": "ALLOWED_MEDIA_DOMAINS_ENV", "value": "images.example.com"}],
        "vllmArgs": ["--max-model-len=8192"],
        "tls": {"secretName": "gateway-tls"},
        "apiKeys": {"secretName": "gateway-keys"},
        "managementKeys": {"secretName": "gateway-management-keys"},
        "serviceMonitor": {
            "endpoint": {"authorization": {"credentials": {"name": "scrape", "key": "key"}}}
        },
        "drainSeconds": 300,
        "startupSeconds": 3600,
    },
    "sidecar": {
        "mode": "sidecar",
        "model": {"claimName": "model", "path": "/models/llama3-70b", "servedName": "llama3-70b"},
        "resources": {"requests": {"cpu": "1", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "vllmResources": {
            "requests": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"},
            "limits": {"memory": "64Gi", "nvidia.com/gpu": "1"},
        },
    },
    "sidecar-ascend": {
        "mode": "sidecar",
        "accelerator": "ascend",
        "vllmImage": {"repository": "quay.io/ascend/vllm-ascend", "tag": "v0.23.0"},
        "model": {"claimName": "model", "path": "/models/llama3-70b", "servedName": "llama3-70b"},
    },
    "fixed-size": {
        "autoscaling": {"enabled": False},
        "replicas": 3,
        "podDisruptionBudget": {"enabled": False},
        "serviceMonitor": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "nodeSelector": {"pool": "inference"},
        "tolerations": [{"key": "npu", "operator": "Exists"}],
        "podAnnotations": {"a": "b"},
        "imagePullSecrets": [{"name": "registry"}],
        "gateway": {"body-limit": 20_000_000, "token-timeout": 2.5},
    },
}


def tool(name: str) -> str:
    """The path of a program that pip installed beside this Python."""
    beside = Path(sys.executable).parent
    path = shutil.which(name, path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    assert path is not None, f"{name} is not installed: see `make test-deploy`"
    return path


@cache
def kustomized(overlay: str) -> str:
    """The YAML of one overlay, by `kubectl kustomize`."""
    command = [tool("kubectl"), "kustomize", str(DEPLOY / "kubernetes" / "overlays" / overlay)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@cache
def charted(case: str) -> str:
    """The YAML of the chart with one of `CHART_CASES`, by Helm's engine."""
    result = helm(CHART_CASES[case])
    assert result.returncode == 0, result.stderr
    return result.stdout


def helm(values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Render the chart: the manifest is in `stdout`, a refusal in `stderr`."""
    return subprocess.run(
        [sys.executable, "-m", "tests.deploy.helm_template", str(CHART)],
        check=False,
        input=json.dumps(values),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"HELM_DRIVER": "memory"},
        timeout=60,
    )


ALL: Final = tuple(f"kustomize/{name}" for name in OVERLAYS) + tuple(
    f"helm/{name}" for name in CHART_CASES
)


@dataclass(frozen=True)
class Rendered:
    """One rendering: its text and its objects."""

    name: str
    text: str
    objects: tuple[dict[str, Any], ...]

    def one(self, kind: str) -> Any:
        """The only object of a kind."""
        found = [item for item in self.objects if item["kind"] == kind]
        assert len(found) == 1, f"{self.name}: {len(found)} objects of kind {kind}"
        return found[0]

    def has(self, kind: str) -> bool:
        return any(item["kind"] == kind for item in self.objects)

    @property
    def pod(self) -> Any:
        """The pod's spec."""
        return self.one("Deployment")["spec"]["template"]["spec"]

    @property
    def gateway(self) -> Any:
        """The gateway's container."""
        (container,) = self.pod["containers"]
        return container

    @property
    def containers(self) -> list[Any]:
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]


def rendered(name: str) -> Rendered:
    """`kustomize/<overlay>` or `helm/<case>`."""
    engine, _, case = name.partition("/")
    text = kustomized(case) if engine == "kustomize" else charted(case)
    objects = tuple(item for item in yaml.safe_load_all(text) if item is not None)
    return Rendered(name, text, objects)
