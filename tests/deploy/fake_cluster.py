"""Just enough of a Kubernetes API for Helm's engine to install a chart into it.

`helm-sdkpy` has no `template` command, so the chart is installed here for real:
values checked against the schema, templates rendered, every kind looked up by
discovery. Objects are accepted and forgotten; Helm itself returns the manifest.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import yaml

VERSION: Final = "v1.30.0"
"""The oldest Kubernetes that the chart says it works on."""
_KINDS: Final = {
    "v1": {"Service": "services", "ServiceAccount": "serviceaccounts"},
    "apps/v1": {"Deployment": "deployments"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
    "monitoring.coreos.com/v1": {"ServiceMonitor": "servicemonitors"},
}


def _resources(version: str) -> dict[str, Any]:
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": [
            {
                "name": plural,
                "singularName": "",
                "namespaced": True,
                "kind": kind,
                "verbs": ["create", "get", "patch"],
            }
            for kind, plural in _KINDS[version].items()
        ],
    }


def _group(version: str) -> dict[str, Any]:
    group, short = version.split("/")
    served = {"groupVersion": version, "version": short}
    return {"name": group, "versions": [served], "preferredVersion": served}


def _discovery() -> dict[str, Any]:
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": VERSION.split(".")[1], "gitVersion": VERSION},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_group(version) for version in _KINDS if "/" in version],
        },
    }
    for version in _KINDS:
        answers[f"/apis/{version}" if "/" in version else f"/api/{version}"] = _resources(version)
    return answers


class _Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answers = _discovery()
    missing: Final = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}

    def do_GET(self) -> None:
        answer = self.answers.get(self.path.partition("?")[0])
        self._send(404 if answer is None else 200, self.missing if answer is None else answer)

    def do_POST(self) -> None:
        self._send(201, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, format: str, *args: object) -> None:
        """Silent: a failure is Helm's to report."""

    def _send(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def fake_cluster() -> Iterator[str]:
    """Serve the API on a free port of the loopback; yields a kubeconfig."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield _kubeconfig(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()


def _kubeconfig(address: str) -> str:
    name = "fake"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": address}}],
        "users": [{"name": name, "user": {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    return yaml.safe_dump(config)
