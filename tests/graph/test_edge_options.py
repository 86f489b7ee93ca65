"""Every option of an edge is declared once, on `Edge`. All that is derived from the declarations agrees with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from flowrl.graph.edge_options import MAX_NUMBER
from flowrl.graph.model import EDGE_OPTIONS, Edge, PortRef
from flowrl.graph.yaml_text import SourceLocation

DOCS = Path(__file__).parents[2] / "docs" / "graph.md"
VALUES: list[Any] = [
    True,
    False,
    None,
    -1,
    0,
    1,
    7,
    MAX_NUMBER,
    MAX_NUMBER + 1,
    0.5,
    "any",
    "order",
]
VALUES += ["wait", "drop_oldest", "drop", "float16", "lz4", "none"]


def edge(kind: Any, **options: Any) -> Edge:
    return Edge(kind, (PortRef("a", "out"),), PortRef("b", "data"), SourceLocation("g"), **options)


def table_of_options() -> list[str]:
    """The rows of the table in docs/graph.md, derived from the declarations."""
    rows = []
    for name, option in EDGE_OPTIONS.items():
        default = option.default_text or f"`{str(option.default).lower()}`"
        values = re.sub(r"'(\w+)'", r"`\1`", option.expected)
        rows.append(
            f"| `{name}` | {', '.join(option.kinds)} | {values} | {default} | {option.meaning} |"
        )
    return rows


def test_the_page_lists_every_option_as_it_is_declared() -> None:
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    begin = lines.index("| option | edges | value | default | meaning |") + 2
    assert lines[begin : begin + len(EDGE_OPTIONS)] == table_of_options()


@pytest.mark.parametrize("name", EDGE_OPTIONS)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_editors_accept_the_values_that_the_reader_accepts(name: str, value: Any) -> None:
    option = EDGE_OPTIONS[name]
    valid = jsonschema.Draft202012Validator(option.json_schema()).is_valid(value)
    assert valid == option.accepts(value)


@pytest.mark.parametrize("name", EDGE_OPTIONS)
def test_the_default_of_an_option_is_not_reported_as_a_reason(name: str) -> None:
    assert EDGE_OPTIONS[name].default not in EDGE_OPTIONS[name].nondeterminism


def test_options_belong_to_kinds_of_edge() -> None:
    assert edge("state").options() == {
        "lag": 0,
        "every": None,
        "latest": False,
        "max_staleness": None,
        "dtype": "float32",
        "compress": "none",
    }
    assert list(edge("stream").options()) == [
        *["max_staleness", "merge", "capacity", "when_full", "dtype", "compress"],
    ]
    assert edge("link").options() == {}


def test_options_that_differ_from_their_defaults_are_the_written_ones() -> None:
    assert edge("state").changed_options() == {}
    assert edge("stream", when_full="drop_oldest", capacity=3).changed_options() == {
        "capacity": 3,
        "when_full": "drop_oldest",
    }


@pytest.mark.parametrize(
    ("found", "labels", "reports"),
    [
        (edge("state"), ["lag 0"], ["lag 0 (what the last round learned)"]),
        (edge("state", lag=1), ["lag 1"], ["lag 1 (1 round older than the last)"]),
        (edge("state", lag=2), ["lag 2"], ["lag 2 (2 rounds older than the last)"]),
        (edge("state", every=96), ["every 96"], ["every 96 versions"]),
        (edge("state", latest=True), ["latest"], ["latest (whatever it is)"]),
        (edge("state", max_staleness=3), ["lag 0"], ["lag 0 (what the last round learned)"]),
        (edge("stream"), [], []),
        (edge("stream", merge="any"), ["merge any"], ["merge any"]),
        (edge("stream", when_full="drop_oldest"), ["drop oldest"], ["drop_oldest"]),
        (edge("link"), [], []),
        (
            edge("state", dtype="float16", compress="zstd"),
            ["lag 0", "float16", "zstd"],
            [
                "lag 0 (what the last round learned)",
                "rounded to float16 (in every placement)",
                "compressed between machines (zstd)",
            ],
        ),
        (
            edge("state", every=2, dtype="float16"),
            ["every 2", "float16"],
            ["every 2 versions", "rounded to float16 (in every placement)"],
        ),
    ],
    ids=str,
)
def test_an_edge_shows_its_options(found: Edge, labels: list[str], reports: list[str]) -> None:
    assert (found.option_labels(), found.option_reports()) == (labels, reports)
