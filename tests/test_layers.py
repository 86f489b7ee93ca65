"""Packages form layers: each imports only packages of layers above it, as docs/architecture.md lists them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGINE = sorted(p for p in (ROOT / "flowrl").rglob("*.py") if "starter" not in p.parts)
NODES = sorted((ROOT / "nodes").rglob("*.py"))
CONTRACT = {"core", "machine"}  # the packages of the engine that nodes may import
ARCHITECTURE = ROOT / "docs" / "architecture.md"


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> frozenset[str]:
    """Every module and name that a file imports: within functions and for type checking, too."""
    return frozenset(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_the_top(path: Path) -> set[str]:
    """The packages that are imported when the file is."""
    body = parsed(path).body
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def is_node(module: str) -> bool:
    return module == "flowrl.nodes" or module.startswith("flowrl.nodes.")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# the engine's packages


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(path: Path) -> str:
    """`runtime.control`; the modules of `flowrl` itself, which assemble the others, are each their own."""
    parts = path.relative_to(ROOT / "flowrl").parts
    return ".".join(parts[:-1]) or parts[0].removesuffix(".py")


def package_imports() -> dict[str, set[str]]:
    """The packages that each package imports, in any of its modules."""
    packages = {module_name(path): package_of(path) for path in ENGINE}
    uses: dict[str, set[str]] = defaultdict(set)
    for path in ENGINE:
        own = package_of(path)
        names = {name for name in imported(path) if name in packages and name != "flowrl"}
        uses[own] |= {packages[name] for name in names} - {own}
    return uses


def documented_layers() -> list[set[str]]:
    """The layers in the table of the architecture page, the lowest last as it is shown there."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| (.+?) \|", text, re.MULTILINE)
    return [set(re.findall(r"`flowrl\.([a-z_.]+)`", row)) for row in rows]


def test_each_package_imports_only_packages_of_layers_above_it() -> None:
    layers = documented_layers()
    level = {package: number for number, layer in enumerate(layers) for package in layer}
    uses = package_imports()
    packages = {package for package in uses if package not in ("__init__", "__main__", "version")}
    assert packages == level.keys()
    wrong = {
        f"{package} imports {other}"
        for package in packages
        for other in uses[package] - {"version"}
        if level[other] >= level[package]
    }
    assert wrong == set()


@pytest.mark.parametrize("path", ENGINE, ids=name_of)
def test_the_engine_knows_neither_torch_nor_envs_nor_nodes(path: Path) -> None:
    roots = {name.partition(".")[0] for name in imported(path)}
    assert not roots & {"torch", "gymnasium", "gym"}
    assert not {name for name in imported(path) if is_node(name)}


# the node library


@pytest.mark.parametrize("path", NODES, ids=name_of)
def test_nodes_know_only_the_contract_of_the_engine_and_each_other(path: Path) -> None:
    own = {name for name in imported(path) if name.partition(".")[0] == "flowrl"}
    engine = {name for name in own if not is_node(name) and name != "flowrl"}
    assert not {name for name in engine if name.split(".")[1] not in {*CONTRACT, "nodes"}}


def test_what_describes_nodes_does_not_load_torch() -> None:
    """Modules of networks may: they are imported by those that are about to compute."""
    loads = {name_of(path) for path in NODES if "torch" in at_the_top(path)}
    assert {name for name in loads if not name.startswith("nodes/models/")} == set()


def test_the_mathematics_knows_only_arrays() -> None:
    allowed = {"__future__", "collections", "typing", "numpy", "torch", "flowrl"}
    names = set(imported(ROOT / "nodes" / "returns.py"))
    assert {name.partition(".")[0] for name in names} <= allowed
    modules = ("flowrl.core.batch", "flowrl.nodes.lazy")
    assert all(name.startswith(modules) for name in names if name.startswith("flowrl"))


# names


@pytest.mark.slow
def test_no_class_name_is_used_twice() -> None:
    """A name in a traceback or a search result says which class it is."""
    places = defaultdict(list)
    for path in (*ENGINE, *NODES):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name_of(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
