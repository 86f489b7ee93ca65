"""Pages of the site that are not in docs/: other Markdown files of the repository, and the reference from the code."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import flowrl
import flowrl.nodes
from flowrl.graph.catalogue import Catalogue
from flowrl.render.catalogue_text import show_type

ROOT = Path(__file__).resolve().parents[1]
COPIED = {  # the page of a file outside docs/
    "README.md": "index.md",
    "examples/README.md": "examples.md",
    "bench/README.md": "bench.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
SOURCES = {page: source for source, page in COPIED.items()}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_startup(**_: Any) -> None:
    """Show the packages as they are installed: flowrl.nodes is in nodes/ of a checkout."""
    package = ROOT / "build" / "docs_api" / "flowrl"
    shutil.rmtree(package.parent, ignore_errors=True)
    package.mkdir(parents=True)
    for path in [*(ROOT / "flowrl").iterdir(), ROOT / "nodes", ROOT / "graphs"]:
        (package / path.name).symlink_to(path)


def on_config(config: Any) -> Any:
    """The decisions are pages of the navigation in their order, without being listed in mkdocs.yml."""
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    config.nav.append({"Decisions": [f"decisions/{page.name}" for page in pages]})
    return config


def on_files(files: Files, config: Any) -> Files:
    pages = {page: (ROOT / source).read_text("utf-8") for source, page in COPIED.items()}
    pages["reference/types.md"] = types_page()
    pages["reference/flowrl.md"] = api_page("flowrl", flowrl, flowrl.__all__)
    pages["reference/nodes.md"] = api_page("flowrl.nodes", flowrl.nodes, dir(flowrl.nodes))
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links between files of the repository become links between pages. Other files are named without a link."""
    uri = page.file.src_uri
    source = SOURCES.get(uri, f"docs/{uri}")
    if uri.startswith("reference/"):
        return markdown
    return LINK.sub(lambda link: _link(link, uri, source), markdown)


def _link(link: re.Match[str], uri: str, source: str) -> str:
    target, _, anchor = link[3].partition("#")
    if not target or ":" in target:  # within the page, or on another site
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path in COPIED or (path.startswith("docs/") and (ROOT / path).is_file()):
        to = COPIED.get(path, path.removeprefix("docs/"))
        to = os.path.relpath(to, posixpath.dirname(uri) or ".")
        return f"{link[1]}[{link[2]}]({to}{'#' + anchor if anchor else ''})"
    return link[2] if (ROOT / path).exists() else link[0]  # mkdocs reports the latter


def types_page() -> str:
    """What `flowrl nodes NAME` shows of every type."""
    catalogue = Catalogue()
    lines = ["# Types of nodes and parts", "", "Each block is what `flowrl nodes NAME` prints.", ""]
    for kind in sorted(catalogue.kinds(), key=lambda kind: (kind != "node", kind)):
        lines += [f"## {kind.replace('_', ' ').capitalize()}", ""]
        for name in sorted(catalogue.names(kind)):
            lines += [f"### {name}", "", "```text", show_type(name), "```", ""]
    return "\n".join(lines)


def api_page(title: str, module: Any, names: list[str]) -> str:
    """The public names of a module, documented where they are defined."""
    lines = [f"# {title}", "", str(module.__doc__).strip().partition("\n\n")[0], ""]
    for name in sorted(name for name in names if not name.startswith("_")):
        found = getattr(module, name)
        if hasattr(found, "__qualname__") and found.__module__.startswith("flowrl"):
            lines += [f"::: {found.__module__}.{found.__qualname__}", ""]
    return "\n".join(lines)
