"""What a vLLM's source text says: names, members and parameters, without importing it.

Reading the source takes a second where `import vllm` takes fifteen, and it works
for any vLLM that lies somewhere on disk. Run as a program it records a surface:

    python -m tests.vllm_source          # of the installed vLLM, to tests/data/
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"

Parameters = list[str] | None
"""Names a callable takes, `**` last when it takes any; None for what is no callable."""


def installed_source() -> Path | None:
    """The directory of the installed vLLM's source, or None without vLLM."""
    spec = importlib.util.find_spec("vllm")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def installed_version() -> str | None:
    """The version of the installed vLLM, whatever its distribution is called."""
    for name in importlib.metadata.packages_distributions().get("vllm", ()):
        return importlib.metadata.version(name).partition("+")[0]
    return None


@dataclass
class Shape:
    """One object of vLLM: how it is called, and what it has (of a class)."""

    call: Parameters = None
    members: dict[str, Parameters] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"call": self.call, "members": dict(sorted(self.members.items()))}


class Source:
    """The source tree of one vLLM."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def shape(self, dotted: str) -> Shape | None:
        """The shape of `vllm.module.Name`, or None when there is no such name."""
        module, _, name = dotted.rpartition(".")
        found = self._find(module, name)
        if found is None:
            return None
        module, node = found
        if isinstance(node, ast.ClassDef):
            return self._class_shape(module, node)
        return Shape(call=_parameters(node, bound=False))

    def _find(self, module: str, name: str) -> tuple[str, ast.AST] | None:
        """Where `name` is really defined: imports and aliases are followed."""
        tree = self._tree(module)
        for node in _statements(tree.body) if tree is not None else ():
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    if node.name == name:
                        return module, node
                case ast.ImportFrom():
                    for alias in node.names:
                        if (alias.asname or alias.name) == name:
                            return self._find(self._absolute(module, node), alias.name)
                case ast.Assign(targets=[ast.Name(id=target)], value=ast.Name(id=value)):
                    if target == name:
                        return self._find(module, value)
        return None

    def _class_shape(self, module: str, node: ast.ClassDef) -> Shape:
        shape = Shape()
        fields: list[str] = []
        for base in reversed(node.bases):
            name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            origin, parent = self._find(module, name) or ("", None)
            if isinstance(parent, ast.ClassDef):
                inherited = self._class_shape(origin, parent)
                shape.members.update(inherited.members)
                fields = inherited.call or fields
        own = dict(_members(node))
        shape.members.update(own)
        annotated = [n for n, p in own.items() if p is None]
        shape.call = own.get("__init__") or list(dict.fromkeys([*fields, *annotated]))
        return shape

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        keep = len(parts) - node.level + (1 if self._path(module).name == "__init__.py" else 0)
        return ".".join([*parts[:keep], *([node.module] if node.module else [])])

    def _path(self, module: str) -> Path:
        inside = self._root.joinpath(*module.split(".")[1:])
        package = inside / "__init__.py"
        return package if package.is_file() else inside.with_suffix(".py")

    def _tree(self, module: str) -> ast.Module | None:
        if module.partition(".")[0] != "vllm" or not self._path(module).is_file():
            return None
        return _parsed(self._path(module))


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, those under `if` and `try` included."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            yield from _statements(node.body)
            yield from _statements(node.orelse)


def _members(node: ast.ClassDef) -> Iterator[tuple[str, Parameters]]:
    """Fields, methods, properties and what the methods set on `self`."""
    for item in node.body:
        match item:
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, None
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name, None
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _set_on_self(item)
                yield item.name, None if _is_property(item) else _parameters(item, bound=True)


def _set_on_self(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, None]]:
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name, None


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def _parameters(node: ast.AST, *, bound: bool) -> Parameters:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    arguments = node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    if bound and not any(ast.unparse(d) == "staticmethod" for d in node.decorator_list):
        names = names[1:]
    return [*names, "**"] if arguments.kwarg is not None else names


def record(source: Source, names: Iterator[str] | list[str]) -> dict[str, Any]:
    """The shapes of all `names`; a name that is not there is left out."""
    shapes = ((name, source.shape(name)) for name in sorted(names))
    return {name: shape.as_json() for name, shape in shapes if shape is not None}


def recorded_file(version: str) -> Path:
    return DATA / f"vllm_surface_{version}.json"


def load(version: str) -> dict[str, Any]:
    """A committed surface. Raises FileNotFoundError for a version never recorded."""
    surface: dict[str, Any] = json.loads(recorded_file(version).read_text(encoding="utf-8"))
    return surface


def main() -> None:
    from tests.vllm_surface import NAMES

    root, version = installed_source(), installed_version()
    if root is None or version is None:
        raise SystemExit("there is no vLLM here to record")
    text = json.dumps(record(Source(root), list(NAMES)), separators=(",", ":"), sort_keys=True)
    recorded_file(version).write_text(text.replace('},"vllm.', '},\n"vllm.') + "\n")
    print(f"recorded vLLM {version}")


if __name__ == "__main__":
    main()
