"""Shells complete verbs, options, graphs, runs and types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowrl.cli.completion import SCRIPTS, completions
from flowrl.cli.main import VERBS, main


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["dr"], ["draw"]),
        (["run", "acrobot_p"], ["acrobot_ppo"]),
        (["run", "cartpole_dqn", "--tr"], ["--train-iters"]),
        (["run", "--seed", "1", "acrobot_p"], ["acrobot_ppo"]),
        (["run", "cartpole_dqn", "--placement", ""], ["processes", "serial", "threads"]),
        (["run", "cartpole_dqn", "--seed", ""], []),
        (["nodes", "advanced_"], ["advanced_buffer"]),
        (["docs", "run"], ["runs"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["diff", "cartpole_dqn", "acrobot_p"], ["acrobot_ppo"]),
        (["rnu", ""], []),
    ],
)
def test_the_last_word_is_completed(words: list[str], found: list[str]) -> None:
    assert completions(words) == found


def test_the_first_word_is_any_verb() -> None:
    assert set(VERBS) <= set(completions([""]))


def test_files_and_runs_of_the_working_folder_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.yaml", "notes.txt", "sub/mine.yml", "runs/mine-seed0-1/graph.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert completions(["check", "mi"]) == ["mine.yaml", "minigrid_ppo", "minigriddict_ppo"]
    assert completions(["check", "su"]) == ["sub/"]
    assert completions(["check", "sub/"]) == ["sub/mine.yml"]
    assert completions(["eval", "mi"]) == ["mine-seed0-1"]
    assert completions(["plot", "last", "mi"]) == ["mine-seed0-1"]
    assert completions(["check", "/no/such/folder/x"]) == []


def test_a_shell_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 2
    assert capsys.readouterr().err == (
        "flowrl: completion: which shell? expected bash, zsh, fish\n"
    )


ASK = {  # what prints the completions of a line, in the language of each shell
    "bash": "COMP_WORDS=({line}); COMP_CWORD={last}; _flowrl; printf '%s\\n' ${{COMPREPLY[@]}}",
    "zsh": """
compadd() {{ print -l -- "${{(@)found}}"; }}
_files() {{ :; }}
words=({line}); CURRENT={last}+1; _flowrl
""",
    "fish": "complete -C '{line}'",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "shell",
    ["bash", *(pytest.param(name, marks=pytest.mark.needs(name)) for name in ("zsh", "fish"))],
)
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("flowrl dr", "draw"),
        ("flowrl run --hash-", "--hash-tokens"),
        ("flowrl run acrobot_p", "acrobot_ppo"),
    ],
)
def test_shells_complete_with_their_scripts(
    shell: str, line: str, found: str, tmp_path: Path
) -> None:
    (tmp_path / "flowrl").write_text(f'#!/bin/sh\nexec {sys.executable} -m flowrl "$@"\n')
    (tmp_path / "flowrl").chmod(0o755)
    begin = "compdef() { :; }\n" if shell == "zsh" else ""  # compinit defines it
    ask = ASK[shell].format(line=line, last=len(line.split()) - 1)
    path = tmp_path / "ask"
    path.write_text(f"{begin}{SCRIPTS[shell]}\n{ask}\n")
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run([shell, str(path)], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [found]
