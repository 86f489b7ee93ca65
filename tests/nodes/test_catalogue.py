"""The names in the catalogue lead to classes, which can be described without importing torch."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import flowrl.nodes
from flowrl.core.config import Part, field_extras
from flowrl.core.node import Node
from flowrl.nodes.catalogue import CATALOGUE

ALL = [(kind, name, path) for kind, of in CATALOGUE.items() for name, path in of.items()]
OWN = [path for kind, _, path in ALL if kind != flowrl.nodes.LAUNCHER]
KNOWN = [
    *OWN,
    *flowrl.nodes.BASE_CLASSES,
    *flowrl.nodes.OTHER_CLASSES,
]


@pytest.mark.parametrize(("kind", "name", "path"), ALL, ids=[f"{k} {n}" for k, n, _ in ALL])
def test_a_name_leads_to_a_class_of_its_kind(kind: str, name: str, path: str) -> None:
    module, _, cls = path.partition(":")
    found = getattr(importlib.import_module(module), cls)
    if kind == "node":
        assert issubclass(found, Node)
    else:
        assert issubclass(found, Part)
        assert found.kind == kind


@pytest.mark.parametrize(("kind", "name", "path"), ALL, ids=[f"{k} {n}" for k, n, _ in ALL])
def test_every_parameter_has_a_description(kind: str, name: str, path: str) -> None:
    module, _, cls = path.partition(":")
    found = getattr(importlib.import_module(module), cls)
    for parameter, field in found.Config.model_fields.items():
        assert field.description, f"{path}: {parameter}"


@pytest.mark.parametrize(("kind", "name", "path"), ALL, ids=[f"{k} {n}" for k, n, _ in ALL])
def test_what_a_parameter_depends_on_exists(kind: str, name: str, path: str) -> None:
    module, _, cls = path.partition(":")
    found = getattr(importlib.import_module(module), cls)
    for parameter, field in found.Config.model_fields.items():
        other = field_extras(field).get("only_with")
        known = {"", None, *found.Config.model_fields, *getattr(found, "ports", {})}
        assert other in known, f"{path}: {parameter}"


@pytest.mark.slow
def test_the_whole_catalogue_is_imported_without_torch() -> None:
    modules = sorted({path.partition(":")[0] for _, _, path in ALL})
    program = (
        "import importlib, sys\n"
        f"for module in {modules!r}: importlib.import_module(module)\n"
        "sys.exit('torch is loaded' if 'torch' in sys.modules else 0)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("path", KNOWN)
def test_every_class_can_be_imported_from_flowrl_nodes_by_its_name(path: str) -> None:
    module, _, cls = path.partition(":")
    assert getattr(flowrl.nodes, cls) is getattr(importlib.import_module(module), cls)
    assert cls in dir(flowrl.nodes)


def test_names_of_classes_are_unique() -> None:
    classes = [path.partition(":")[2] for _, _, path in ALL]
    assert len(set(classes)) == len(classes)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ImportError, match="cannot import name 'SampleColector'"):
        exec("from flowrl.nodes import SampleColector")
    with pytest.raises(AttributeError, match="no 'SampleColector'; did you mean 'SampleCollector'"):
        _ = flowrl.nodes.SampleColector


def test_type_checkers_see_the_same_names() -> None:
    """The imports for type checking are those of the catalogue, each from its module."""
    tree = ast.parse(Path(flowrl.nodes.__file__).read_text(encoding="utf-8"))
    guarded, *_ = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        f"{line.module}:{alias.name}"
        for line in guarded.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
        if alias.asname == alias.name  # so that type checkers take it for exported
    }
    assert seen == set(KNOWN)


def test_help_shows_all_names() -> None:
    classes = [path.partition(":")[2] for path in OWN]
    assert set(classes) <= set(flowrl.nodes.__all__)
