"""The site of the documentation has every page, and its links lead to pages. `make docs` builds it and checks links."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from flowrl.graph.catalogue import Catalogue

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def hooks() -> Any:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docsite" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation() -> None:
    """Decisions are added by the hooks."""
    navigation = (ROOT / "docsite" / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/-]+\.md)$", navigation, re.M)
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= set(listed)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize(
    ("page", "link", "shown"),
    [
        ("index.md", "[runs](docs/runs.md#output)", "[runs](runs.md#output)"),
        ("index.md", "[why](docs/decisions/)", "why"),
        ("index.md", "[here](#speed)", "[here](#speed)"),
        ("runs.md", "[trackers](../examples/trackers)", "trackers"),
        ("runs.md", "[all](../examples/README.md)", "[all](examples.md)"),
        ("runs.md", "[a](../bench/README.md#acting)", "[a](bench.md#acting)"),
        ("decisions/0007-memory-alignment.md", "[n](../nodes.md)", "[n](../nodes.md)"),
        ("runs.md", "[gone](gone.md)", "[gone](gone.md)"),
        ("runs.md", "[other](https://example.org/x.md)", "[other](https://example.org/x.md)"),
    ],
)
def test_links_between_files_become_links_between_pages(
    page: str, link: str, shown: str, hooks: Any
) -> None:
    class Page:
        class file:
            src_uri = page

    assert hooks.on_page_markdown(link, Page) == shown


def test_the_reference_has_every_type_and_every_public_name(hooks: Any) -> None:
    catalogue, page = Catalogue(), hooks.types_page()
    for kind in catalogue.kinds():
        for name in catalogue.names(kind):
            assert f"\n### {name}\n" in page
    api = hooks.api_page("flowrl", hooks.flowrl, hooks.flowrl.__all__)
    assert "\n::: flowrl.api.flow_graph.load\n" in api
    assert "\n::: flowrl.runs.watcher.Watcher\n" in api


def test_the_navigation_is_built_on_landing() -> None:
    assert "make docs" in (ROOT / ".ci" / "run").read_text()
