"""The documentation can be read where no checkout is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flowrl.cli.docs import docs_folder, find_section
from flowrl.core.errors import UsageError
from tests.cli.conftest import Called

Flowrl = Callable[..., Called]
DOCS = Path(__file__).parents[2] / "docs"


def test_every_page_is_listed_with_its_title(flowrl: Flowrl) -> None:
    status, out, err = flowrl("docs")
    assert (status, err) == (0, "")
    listed = dict(line.split(maxsplit=1) for line in out.partition("\n\n")[0].splitlines())
    pages = [*DOCS.glob("*.md"), *DOCS.glob("decisions/*.md")]
    assert listed == {
        page.relative_to(DOCS).with_suffix("").as_posix(): page.read_text()
        .splitlines()[0]
        .lstrip("# ")
        for page in pages
    }


def test_a_page_is_shown_as_it_is_where_no_terminal_is(flowrl: Flowrl) -> None:
    assert flowrl("docs", "runs") == (0, (DOCS / "runs.md").read_text(), "")
    assert flowrl("docs", "docs/runs.md")[1] == (DOCS / "runs.md").read_text()
    assert flowrl("docs", "runs", "--path")[1].strip() == str(docs_folder() / "runs.md")


def test_a_section_ends_where_the_next_one_begins(flowrl: Flowrl) -> None:
    out = flowrl("docs", "runs", "watch")[1]
    assert out.startswith("## Watchers\n")
    assert "examples/trackers" in out
    assert "## After a run" not in out


def test_comments_in_code_are_no_headings() -> None:
    text = "# A\n## B\n```sh\n# C\n```\n### D\nd\n## E\n"
    assert find_section("p", text, "b") == "## B\n```sh\n# C\n```\n### D\nd\n"
    with pytest.raises(UsageError, match="has no section 'C'; it has: B, E"):
        find_section("p", text, "C")


def test_an_unknown_page_has_a_hint(flowrl: Flowrl) -> None:
    status, _, err = flowrl("docs", "rnus")
    assert status == 2
    assert err.startswith("flowrl: docs: there is no page 'rnus'; did you mean 'runs'?")


def test_a_terminal_sees_formatted_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from flowrl.cli import docs

    monkeypatch.setattr(docs.sys.stdout, "isatty", lambda: True, raising=False)
    docs._show("## Heading\n\nSome *text*.\n")
    shown = capsys.readouterr().out
    assert "##" not in shown
    assert "*" not in shown
    assert "Heading" in shown
