"""The page for users of DI-engine: every name of flowrl on it exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import flowrl
import flowrl.nodes
from flowrl.cli.main import VERBS
from flowrl.graph.keywords import ROOT_KEYS
from flowrl.nodes.catalogue import CATALOGUE

TEXT = (Path(__file__).parents[1] / "docs" / "concepts.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("|") and not re.fullmatch(r"[|-]+", line)
]
SECTIONS = ("policy", "env", "model")  # which nodes share
# functions of nodes that are in a folder of their own
MODULES = {"episodes": "flowrl.nodes.collectors.episodes"}


def code_spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def type_named(name: str) -> Any:
    """The class of a type in any part of the catalogue."""
    path = next(names[name] for names in CATALOGUE.values() if name in names)
    module, _, cls = path.partition(":")
    return getattr(importlib.import_module(module), cls)


def names_of(column: int) -> list[str]:
    body = [row for row in ROWS if row[0] != "DI-engine"]
    return sorted({span for row in body for span in code_spans(row[column])})


def test_every_row_has_four_columns() -> None:
    assert {len(row) for row in ROWS} == {4}
    assert len(ROWS) > 70


@pytest.mark.parametrize("name", names_of(1))
def test_a_name_in_a_graph_is_a_type_a_parameter_or_a_key(name: str) -> None:
    first, _, parameter = name.partition(".")
    if not parameter and first in (*ROOT_KEYS, *SECTIONS, "extends"):
        return
    cls = type_named(first)
    ports = getattr(cls, "ports", {})
    assert not parameter or parameter in cls.Config.model_fields or parameter in ports


@pytest.mark.parametrize("name", names_of(2))
def test_a_name_by_hand_can_be_imported(name: str) -> None:
    first, _, attribute = name.partition(".")
    if first[0].isupper():
        owner = getattr(flowrl, first) if first in flowrl.__all__ else getattr(flowrl.nodes, first)
    else:
        owner = importlib.import_module(MODULES.get(first, f"flowrl.nodes.{first}"))
    assert not attribute or hasattr(owner, attribute)


def test_every_command_on_the_page_is_a_verb() -> None:
    verbs = set(re.findall(r"`flowrl (\w+)", TEXT))
    assert verbs
    assert verbs <= set(VERBS)
