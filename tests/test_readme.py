"""Everything that the README shows is true."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from flowrl.cli import main
from flowrl.graph.json_schema import SCHEMA_COMMENT

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = re.findall(r"```yaml\n# (graphs/\w+\.yaml)\n(.*?)```", README, re.S)
[MINE] = re.findall(r"```yaml\n(# mine\.yaml\n.*?)```", README, re.S)
SESSIONS = re.findall(r"```\n\$ flowrl ([^\n]*)\n(.*?)```", README, re.S)


def test_there_are_files_and_sessions_in_it() -> None:
    assert len(FILES) == 3
    assert [words for words, _ in SESSIONS] == [
        "diff cartpole_dqn cartpole_dqn_rnd",
        "check mine.yaml",
    ]


@pytest.mark.parametrize(("name", "shown"), FILES)
def test_a_graph_is_shown_as_it_is(name: str, shown: str) -> None:
    assert SCHEMA_COMMENT + shown == (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("words", "shown"), SESSIONS)
def test_a_session_is_shown_as_it_goes(
    words: str,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(MINE)
    main(words.split())
    assert "".join(capsys.readouterr()) == shown


@pytest.mark.parametrize("path", re.findall(r"\]\(([\w/.]+)\)", README))
def test_what_it_links_to_is_there(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.slow
def test_the_run_with_a_changed_value_ends_no_later_than_the_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [words] = re.findall(r"^\| `flowrl (run cartpole_dqn --set [^`]*)`", README, re.M)
    changed = shlex.split(words)
    at = changed.index("--set")
    summaries = []
    for argv in (changed, changed[:at] + changed[at + 2 :]):
        assert main([*argv, "--json"]) == 0
        summaries.append(json.loads(capsys.readouterr().out))
    assert [summary["status"] for summary in summaries] == ["solved", "solved"]
    assert summaries[0]["env_steps"] <= summaries[1]["env_steps"]


@pytest.mark.slow
def test_the_run_from_python_ends_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    section = README.partition("From Python:\n")[2]
    names: dict[str, Any] = {}
    exec(
        compile(section.partition("```python\n")[2].partition("```")[0], "README.md", "exec"), names
    )
    assert names["result"].status == "solved"
    assert names["metrics"]["return_mean"][-1] >= 475
    assert names["action"] in (0, 1)
