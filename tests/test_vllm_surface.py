"""What we use of vLLM exists in every supported version, and the records are true.

The first tests need no vLLM at all. The last one compares the record with the
installed vLLM, so that a changed package shows here and not in a broken stream.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import proxy.engines
from tests.vllm_source import Source, installed_source, installed_version, load, record
from tests.vllm_surface import (
    HANDLES,
    IMPORTED,
    IMPORTERS,
    MOVED,
    NAMES,
    OPTIONAL,
    OVERRIDES,
    PASSED_ON,
    VERSIONS,
    Handle,
    Override,
)

ENGINES = Path(proxy.engines.__file__).parent
MODULES = sorted({handle.module for handle in HANDLES})
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Used(NamedTuple):
    """One place where our code asks something of vLLM."""

    where: str
    name: str
    attribute: str | None
    """None: the object itself is called."""
    call: ast.Call | None


@cache
def parsed(module: str) -> ast.Module:
    """The syntax tree of one of our modules."""
    return ast.parse((ENGINES / f"{module}.py").read_text(encoding="utf-8"))


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """All functions with their dotted names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, Function):
            yield prefix + node.name, node
            yield from functions(node, f"{prefix}{node.name}.")


def nodes() -> Iterator[ast.AST]:
    """Everything in the modules that import vLLM."""
    for module in IMPORTERS:
        yield from ast.walk(parsed(module))


def imports() -> Iterator[str]:
    """The names of vLLM in our modules, dotted: imported, or got from a module of it."""
    modules = {part for name in asked_for() for part in accumulate(name.split("."), "{}.{}".format)}
    for node in nodes():
        match node:
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "vllm":
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.Attribute(value=ast.Attribute() as parent, attr=attr):
                dotted = f"{ast.unparse(parent)}.{attr}"
                if dotted.startswith("vllm.") and dotted not in modules:
                    yield dotted


def asked_for() -> Iterator[str]:
    """What our modules get with `getattr(vllm.module, name, default)`."""
    for node in nodes():
        match node:
            case ast.Call(
                func=ast.Name(id="getattr"), args=[holder, ast.Constant(value=str(name)), _]
            ):
                if ast.unparse(holder).startswith("vllm."):
                    yield f"{ast.unparse(holder)}.{name}"


def uses() -> Iterator[Used]:
    """Every attribute of a handle and every call of an imported name."""
    for handle in HANDLES:
        for found, call in attributes(handle):
            yield Used(f"{handle.module}.py:{found.lineno}", handle.name, found.attr, call)
    local = {dotted.rpartition(".")[2]: dotted for dotted in IMPORTED}
    for module in IMPORTERS:
        for node in ast.walk(parsed(module)):
            if isinstance(node, ast.Call) and (dotted := local.get(ast.unparse(node.func))):
                yield Used(f"{module}.py:{node.lineno}", dotted, None, node)


def attributes(handle: Handle) -> Iterator[tuple[ast.Attribute, ast.Call | None]]:
    calls = {id(n.func): n for n in ast.walk(parsed(handle.module)) if isinstance(n, ast.Call)}
    for scope in scopes(handle):
        for node in ast.walk(scope):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == handle.expression:
                yield node, calls.get(id(node))


def scopes(handle: Handle) -> list[ast.AST]:
    tree = parsed(handle.module)
    if handle.function is None:
        return [tree]
    return [node for name, node in functions(tree) if name.endswith(handle.function)]


def fields_of_protocol(handle: Handle) -> list[str]:
    """What a Protocol of ours that stands for a class of vLLM declares."""
    for node in parsed(handle.module).body:
        if isinstance(node, ast.ClassDef) and node.name == handle.expression:
            return [ast.unparse(n.target) for n in node.body if isinstance(n, ast.AnnAssign)]
    return []


def refusal(used: Used, surface: dict[str, Any]) -> str | None:
    """Why this use does not fit this surface, or None."""
    shape = surface.get(used.name)
    if shape is None:
        return "no such name"
    if used.attribute is None:
        parameters = shape["call"]
    elif used.attribute not in shape["members"]:
        return f"has no {used.attribute}"
    else:
        parameters = shape["members"][used.attribute]
    return None if used.call is None or parameters is None else misfit(used.call, parameters)


def misfit(call: ast.Call, parameters: list[str]) -> str | None:
    if parameters[-1:] == ["**"]:
        return None
    unknown = [k.arg for k in call.keywords if k.arg is not None and k.arg not in parameters]
    if unknown:
        return f"takes no {', '.join(unknown)}"
    return "takes fewer arguments" if len(call.args) > len(parameters) else None


def test_the_names_in_the_source_are_those_of_the_tables() -> None:
    assert {*imports()} == {*IMPORTED}
    assert {*asked_for()} == {*OPTIONAL}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_use_fits_every_version(version: str) -> None:
    surface = load(version)
    found = list(uses())
    assert len(found) > 40, "the search for uses finds too little to be right"
    refused = [
        f"{u.where}: {u.name}: {why}" for u in found if (why := refusal(u, surface)) is not None
    ]
    assert refused == []


@pytest.mark.parametrize("handle", HANDLES, ids=lambda h: f"{h.module}:{h.expression}")
def test_every_handle_is_really_used(handle: Handle) -> None:
    assert list(attributes(handle)) or fields_of_protocol(handle)


@pytest.mark.parametrize("version", VERSIONS)
def test_our_protocols_are_vllms_shapes(version: str) -> None:
    surface = load(version)
    for handle in HANDLES:
        missing = set(fields_of_protocol(handle)) - set(surface[handle.name]["members"])
        assert missing == set(), (handle.expression, version)


@pytest.mark.parametrize("module", MODULES)
def test_nothing_of_vllm_is_held_without_a_handle(module: str) -> None:
    expressions = {h.expression for h in HANDLES if h.module == module}
    loose = [
        f"{name}({argument.arg})"
        for name, function in functions(parsed(module))
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if argument.annotation is not None
        and ast.unparse(argument.annotation) == "Any"
        and argument.arg not in expressions | PASSED_ON
    ]
    assert loose == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("override", OVERRIDES, ids=lambda o: o.function)
def test_what_vllm_calls_of_ours_takes_what_vllm_gives(override: Override, version: str) -> None:
    theirs = load(version)[override.name]["members"][override.method]
    ours = dict(functions(parsed(override.module)))[override.function].args
    names = [a.arg for a in ours.args if a.arg not in ("self", "listener")]
    if ours.kwarg is None:
        assert len(names) == len(theirs)
    else:
        assert len(names) <= len(theirs)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MOVED)
def test_what_has_moved_is_somewhere_and_taken_as_it_is(name: str, version: str) -> None:
    surface = load(version)
    found = next((place for place in MOVED[name] if place in surface), None)
    assert found is not None
    own = parsed("embedded_openai")
    calls = [
        call
        for call in ast.walk(own)
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] == name
    ]
    assert calls
    parameters = surface[found]["call"]
    assert [why for call in calls if (why := misfit(call, parameters)) is not None] == []


@pytest.mark.parametrize("name", OPTIONAL)
def test_what_is_optional_is_missing_somewhere(name: str) -> None:
    present = [version for version in VERSIONS if name in load(version)]
    assert present, "no supported version has it"
    assert present != list(VERSIONS), "every supported version has it: use it directly"


def test_a_launch_has_what_it_is_asked_for() -> None:
    asked = {
        node.attr
        for node in ast.walk(parsed("embedded"))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "launched"
    }
    assert asked
    name = "vllm.v1.engine.utils.CoreEngineLaunch"
    for shape in (load(version).get(name) for version in VERSIONS):
        assert shape is None or asked <= shape["members"].keys()


def test_the_record_of_the_installed_vllm_is_true() -> None:
    root, version = installed_source(), installed_version()
    if root is None or version is None:
        pytest.skip("no vLLM here")
    if version not in VERSIONS:
        pytest.skip(f"vLLM {version} is none of the supported versions")
    assert record(Source(root), list(NAMES)) == load(version)
