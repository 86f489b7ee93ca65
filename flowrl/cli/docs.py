"""The verb `docs`: the documentation of the installed version, in the terminal."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace
from importlib import resources
from pathlib import Path

from flowrl.core.errors import UsageError, spelling_hint

_HEADING = re.compile(r"^(#+) (.*)$")


def docs_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("page", nargs="?", metavar="PAGE", help="a page (default: list them)")
    parser.add_argument(
        "section", nargs="?", metavar="SECTION", help="only the section whose heading has this text"
    )
    parser.add_argument(
        "--path", action="store_true", help="print the file of the page, or the folder"
    )


def docs(arguments: Namespace) -> int:
    folder = docs_folder()
    if arguments.page is None:
        print(folder if arguments.path else list_pages(folder))
        return 0
    path = find_page(folder, arguments.page)
    if arguments.path:
        print(path)
        return 0
    text = path.read_text(encoding="utf-8")
    if arguments.section is not None:
        text = find_section(path.stem, text, arguments.section)
    _show(text)
    return 0


def docs_folder() -> Path:
    return Path(str(resources.files("flowrl.docs")))


def list_pages(folder: Path) -> str:
    """The name and the title of each page."""
    rows = [(_name(folder, path), _title(path)) for path in _pages(folder)]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {title}" for name, title in rows]
    return "\n".join([*lines, "", "flowrl docs PAGE shows one of them"])


def page_names(folder: Path) -> list[str]:
    return [_name(folder, path) for path in _pages(folder)]


def find_page(folder: Path, name: str) -> Path:
    known = {_name(folder, path): path for path in _pages(folder)}
    wanted = name.removeprefix("docs/").removesuffix(".md")
    if wanted not in known:
        raise UsageError(f"docs: there is no page '{name}'; {spelling_hint(wanted, known)}")
    return known[wanted]


def find_section(page: str, text: str, wanted: str) -> str:
    """The first section whose heading contains the text, with the sections below it."""
    headings = _headings(text)
    for number, (line, level, heading) in enumerate(headings):
        if wanted.lower() in heading.lower():
            ends = [at for at, other, _ in headings[number + 1 :] if other <= level]
            return "\n".join(text.splitlines()[line : ends[0] if ends else None]) + "\n"
    known = ", ".join(heading for _, level, heading in headings if level == 2)
    raise UsageError(f"docs: the page '{page}' has no section '{wanted}'; it has: {known}")


def _headings(text: str) -> list[tuple[int, int, str]]:
    """Line, level and text of each heading. Comments in blocks of code are none."""
    found, in_code = [], False
    for number, line in enumerate(text.splitlines()):
        in_code ^= line.lstrip().startswith("```")
        heading = None if in_code else _HEADING.match(line)
        if heading is not None:
            found.append((number, len(heading[1]), heading[2]))
    return found


def _pages(folder: Path) -> list[Path]:
    return [*sorted(folder.glob("*.md")), *sorted(folder.glob("decisions/*.md"))]


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix()


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def _show(text: str) -> None:
    """Formatted on a terminal, and elsewhere the Markdown as it is."""
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))
