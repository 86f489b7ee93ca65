"""Edits of graphs by reward models: those of docs/edits.md, and wrong ones, which `check` tells with the fix."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import flowrl
from flowrl.graph.bundled import graphs_folder

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "edits.md").read_text(encoding="utf-8")
DEMOS = "demos: {type: demos, path: cartpole_demos.npz}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with data of CartPole and of Pendulum, and two damaged ones of CartPole."""
    for name in ("cartpole_demos.npz", "pendulum_mixed.npz"):
        shutil.copy(graphs_folder() / name, tmp_path)
    with np.load(tmp_path / "cartpole_demos.npz") as file:
        for missing in ("reward", "next_obs"):
            columns = {name: file[name] for name in file.files if name != missing}
            np.savez(tmp_path / f"without_{missing}.npz", **columns)
    return tmp_path


def problem(folder: Path, text: str) -> str:
    """The only problem of a graph."""
    (folder / "g.yaml").write_text(text, encoding="utf-8")
    [found] = flowrl.load(folder / "g.yaml").check().problems
    return f"{found.what}; {found.hint}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "extends: cartpole_dqn\nnodes: {gail: gail}\nedges: [collector -> gail -> buffer]",
            "gail learns from an expert, and nothing is connected to its input 'expert'; connect demonstrations",
        ),
        (
            "extends: cartpole_dqn_gail\nnodes: {demos: {path: pendulum_mixed.npz, policy: null}}",
            "gail.expert needs the column 'obs' as float32[4], and demos.data gives it as float32[3]",
        ),
        (
            "extends: cartpole_bc\nnodes: {rnd: rnd, demos: {path: without_next_obs.npz}}\n"
            "edges: [demos -> rnd -> buffer]",
            "rnd reads the column 'next_obs', and the rows have obs, action, reward",
        ),
        (
            f"extends: cartpole_dqn\nnodes: {{airl: airl, {DEMOS}}}\n"
            "edges: [collector -> airl -> buffer, demos -> airl.expert, learner -> airl]",
            "airl needs the likelihoods of actions, and dqn does not give them; take ppo or a2c",
        ),
        (
            "extends: cartpole_dqn_demos\nnodes: {demos: {path: without_reward.npz}}",
            "buffer.demos needs the column 'reward'",
        ),
    ],
)
def test_a_wrong_edit_is_told_with_its_fix(folder: Path, text: str, expected: str) -> None:
    found = problem(folder, text)
    assert expected in found
    shown = re.findall(r"\| `([^`]+?) ?…?` \|", PAGE)
    assert any(line in found for line in shown), "docs/edits.md shows each of these problems"


@pytest.mark.parametrize(
    ("name", "bundled"), [("imitate", "cartpole_dqn_gail"), ("sqil", "cartpole_sqil")]
)
def test_the_page_shows_the_bundled_graphs(name: str, bundled: str) -> None:
    [shown] = re.findall(rf"```yaml\n# {name}\.yaml\n(.*?)```", PAGE, re.S)
    text = (graphs_folder() / f"{bundled}.yaml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines(True) if not line.startswith(("#", "about:"))]
    assert shown == "".join(lines)


def test_hindsight_goals_are_what_the_page_adds_to_dqn() -> None:
    text = (graphs_folder() / "bitflip_dqn_her.yaml").read_text(encoding="utf-8")
    [shown] = [b for b in re.findall(r"```yaml\n(.*?)```", PAGE, re.S) if "type: her" in b]
    assert shown.partition("    transforms:")[2] in text
