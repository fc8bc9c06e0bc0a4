"""tests/plugins/fake_platform, installed as pip would install it."""

from __future__ import annotations

import os
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "plugins"
OPTION = "--fake-accelerator-option"
"""What the platform adds to vLLM's options."""


@dataclass(frozen=True)
class InstalledPlugin:
    """A directory for PYTHONPATH that holds the plugin."""

    site: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to see the plugin."""
        path = os.environ.get("PYTHONPATH")
        return {
            "FAKE_PLATFORM_MARKS": str(self.site / "marks"),
            "PYTHONPATH": os.pathsep.join([str(self.site), *([path] if path else [])]),
        }

    def marks(self) -> set[tuple[int, str]]:
        """In which processes vLLM has turned to the platform, and for what."""
        lines = (self.site / "marks").read_text(encoding="utf-8").splitlines()
        return {(int(process), what) for process, what in map(str.split, lines)}


def install_plugin(site: Path) -> InstalledPlugin:
    """Put the package and its metadata into `site`."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    shutil.copytree(SOURCE / "fake_platform", site / "fake_platform")
    info = site / f"fake_platform-{project['version']}.dist-info"
    info.mkdir()
    metadata = (
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
    )
    (info / "METADATA").write_text("\n".join([*metadata, ""]))
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]))
    return InstalledPlugin(site)
