"""`helm template`, which helm-sdkpy lacks: values (JSON) on stdin, the manifest on stdout.

Run as a program of its own: Helm's library holds a Go runtime, which reads the
environment as it was when the process began, and HELM_DRIVER=memory has to be in
it. A refusal goes to stderr, exit 1.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Final

from helm_sdkpy import (  # type: ignore[import-untyped]
    Configuration,
    HelmError,
    Install,
    Lint,
)

from tests.deploy.fake_cluster import fake_cluster

_WARNING: Final = 2
"""Helm's severities: 1 info, 2 warning, 3 error."""


async def _render(chart: str, values: str) -> str:
    with fake_cluster() as kubeconfig:
        configuration = Configuration(namespace="inference", kubeconfig=kubeconfig)
        report = await Lint(configuration).run(chart)
        complaints = [item for item in report["Messages"] if item["Severity"] >= _WARNING]
        if complaints or report["Errors"]:
            raise HelmError(f"lint: {report}")
        install = Install(configuration)
        release = await install.run("gateway", chart, values=json.loads(values), wait=False)
        return str(release["manifest"])


def main() -> int:
    try:
        print(asyncio.run(_render(sys.argv[1], sys.stdin.read())))
    except HelmError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
