"""docs/sidecar.md says what the overlay does, and nothing that the settings do not know."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from proxy.cli import main
from proxy.settings import Settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sidecar.md").read_text(encoding="utf-8")
OVERLAY = ROOT / "deploy" / "kubernetes" / "overlays" / "sidecar" / "deployment.yaml"


def test_the_pod_of_the_page_is_that_of_the_overlay() -> None:
    shown = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])
    real = yaml.safe_load(OVERLAY.read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    for kind in ("initContainers", "containers"):
        (container,), (actual,) = shown[kind], real[kind]
        assert container.items() <= {**actual, "image": container["image"]}.items()
        assert actual.get("image", container["image"]) == container["image"]


def test_the_command_of_the_page_is_understood() -> None:
    (command,) = re.findall(r"^mindie-gateway (serve .*)$", PAGE, re.MULTILINE)
    arguments = command.replace("serve", "settings", 1).split()
    assert main(arguments) == 0


def test_the_settings_of_the_page_exist() -> None:
    named = set(re.findall(r"`(?:--)?(upstream[\w-]*)`", PAGE))
    assert {name.replace("-", "_") for name in named} <= set(Settings.model_fields)
