"""Dependencies point one way."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGINE = sorted(p for p in (ROOT / "flowrl").rglob("*.py") if "starter" not in p.parts)
NODES = sorted((ROOT / "nodes").rglob("*.py"))
CONTRACT = {"core", "machine"}  # the packages that nodes may import


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            if node.module in ("flowrl", "flowrl.nodes"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_the_top(path: Path) -> set[str]:
    """The packages that are imported when the file is."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
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


@pytest.mark.parametrize("path", ENGINE, ids=name_of)
def test_the_engine_knows_neither_torch_nor_envs_nor_nodes(path: Path) -> None:
    roots = {name.partition(".")[0] for name in imported(path)}
    assert not roots & {"torch", "gymnasium", "gym"}
    assert not {name for name in imported(path) if is_node(name)}


@pytest.mark.parametrize("path", NODES, ids=name_of)
def test_nodes_know_only_the_contract_of_the_engine_and_each_other(path: Path) -> None:
    own = {name for name in imported(path) if name.partition(".")[0] == "flowrl"}
    engine = {name for name in own if not is_node(name)}
    assert not {name for name in engine if name.split(".")[1] not in CONTRACT}


def test_what_describes_nodes_does_not_load_torch() -> None:
    """Modules of networks may: they are imported by those that are about to compute."""
    loads = {name_of(path) for path in NODES if "torch" in at_the_top(path)}
    assert {name for name in loads if not name.startswith("nodes/models/")} == set()


def test_the_mathematics_knows_only_arrays() -> None:
    allowed = {"__future__", "collections", "typing", "numpy", "torch"}
    roots = {name.partition(".")[0] for name in imported(ROOT / "nodes" / "returns.py")}
    types = {name for name in imported(ROOT / "nodes" / "returns.py") if "flowrl" in name}
    assert types <= {"flowrl.core.batch", "flowrl.nodes.lazy"}
    assert roots - {"flowrl"} <= allowed


def test_the_layer_of_each_module_is_below_those_that_use_it() -> None:
    """The engine's modules import each other without circles."""
    names = {
        f"flowrl.{'.'.join(p.relative_to(ROOT / 'flowrl').with_suffix('').parts)}": p
        for p in ENGINE
    }
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    uses = {
        name: {other for other in at_import(path) if other in names and other != name}
        for name, path in names.items()
        if name != "flowrl"  # it imports when it is first asked for a name
    }
    done: set[str] = set()
    while layer := {name for name in uses.keys() - done if uses[name] - {"flowrl"} <= done}:
        done |= layer
    assert uses.keys() - done == set()


def at_import(path: Path) -> set[str]:
    """The modules that are imported when the file is, type checking aside."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found
