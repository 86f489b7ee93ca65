"""Every bundled graph is sound and repeatable, and solves its task."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import flowrl
from flowrl.core.checkpoint import read_whole
from flowrl.core.errors import RunError
from flowrl.graph.bundled import bundled_graphs, graphs_folder
from flowrl.runs.evaluation import evaluate_checkpoint
from tests.quick_selection import exhaustive_except

SOLVED = {  # graph: the seeds on which it must reach its goal
    "cartpole_dqn": range(10),
    "cartpole_ppo": range(10),
    "cartpole_dqn_rnd": range(3),
    "cartpole_dqn_demos": range(3),
    **dict.fromkeys(
        (
            "cartpole_dqn_gail",
            "cartpole_ppo_gail",
            "cartpole_sqil",
            "cartpole_dqfd",
            "cartpole_cql",
        ),
        range(1),
    ),
    "acrobot_ppo": range(1),
    "minigrid_ppo": range(1),
    "pendulum_ppo": range(1),
    "cartpole_dqn_per": range(5),
    **dict.fromkeys(("cartpole_a2c", "cartpole_acer", "cartpole_bc", "cartpole_c51"), range(1)),
    **dict.fromkeys(("cartpole_impala", "cartpole_mdqn", "cartpole_pqn"), range(1)),
    **dict.fromkeys(("cartpole_reinforce", "cartpole_sql", "cartpole_trpo"), range(1)),
    **dict.fromkeys(
        ("bitflip_dqn_her", "cartpole_dagger", "cartpole_distillation", "cartpole_ppo_airl"),
        range(1),
    ),
    **dict.fromkeys(
        ("cartpole_ppo_pwil", "cartpole_ppo_red", "mountaincar_dqfd", "pendulum_td3bc"), range(1)
    ),
    "hiddencartpole_ppo": range(1),
    "twostep_qmix": range(1),
}
SHORT = {  # graph: settings with which a few train iterations take a second or two
    "acrobot_ppo": {
        "collector.n_sample": 128,
        "evaluator.episodes": 2,
        "env.max_episode_steps": 100,
    },
    "crazyclimber_ppo": {
        "collector.n_sample": 64,
        "envs.count": 2,
        "evaluator.episodes": 2,
        "policy.minibatch_size": 32,
        "env.max_episode_steps": 240,
    },
    "walker2d_ppo": {
        "collector.n_sample": 128,
        "evaluator.episodes": 2,
        "env.max_episode_steps": 100,
    },
    "foraging_mappo": {"collector.n_sample": 128, "evaluator.episodes": 2},
    "hopper_ppo": {"collector.n_sample": 128, "evaluator.episodes": 2},
    "lunarlander_ppo": {"collector.n_sample": 256, "evaluator.episodes": 2},
    "minigrid_ppo": {"collector.n_sample": 128, "evaluator.episodes": 2},
    "minigriddict_ppo": {"collector.n_sample": 128, "evaluator.episodes": 2},
    "mountaincar_dqn": {"evaluator.episodes": 2},
    "pendulum_ppo": {"collector.n_sample": 160, "evaluator.episodes": 2},
    "speaker_ppo": {"collector.n_sample": 100, "envs.count": 4, "evaluator.episodes": 2},
    "tag_ppo": {"collector.n_sample": 100, "envs.count": 4, "evaluator.episodes": 2},
    "spread_ippo": {"collector.n_sample": 192, "envs.count": 4, "evaluator.episodes": 3},
    "spread_iql": {"buffer.batch_size": 16, "evaluator.episodes": 3},
}
SPREAD = (
    "atoc",
    "collaq",
    "coma",
    "happo",
    "maddpg",
    "mappo",
    "masac",
    "qmix",
    "qplex",
    "vdn",
    "wqmix",
)  # algorithms of several agents
PACKAGES = {  # graph: what it needs, and the extra that brings it
    "crazyclimber_ppo": ("ale_py", "atari"),
    **dict.fromkeys(("walker2d_ppo", "hopper_ppo", "hopper_sac"), ("mujoco", "mujoco")),
    **dict.fromkeys(("bipedalwalker_tqc", "lunarlander_dqn"), ("Box2D", "box2d")),
    **dict.fromkeys(("lunarlander_ppo", "lunarlander_rainbow"), ("Box2D", "box2d")),
    **dict.fromkeys(("lunarlander_sac", "lunarlander_td3"), ("Box2D", "box2d")),
    **dict.fromkeys(("minigrid_ppo", "minigriddict_ppo"), ("minigrid", "minigrid")),
    **dict.fromkeys((f"spread_{name}" for name in SPREAD), ("mpe2", "mpe")),
    **dict.fromkeys(("spread_ippo", "spread_iql", "speaker_ppo", "tag_ppo"), ("mpe2", "mpe")),
    "foraging_mappo": ("lbforaging", "foraging"),
}
# Graphs of which no run in CI is compared with one in another placement: those without a collector, and
# those that have the nodes of another graph, with another env.
OFFLINE = {
    "cartpole_bc",
    "cartpole_cql",
    "cartpole_rbc",
    *(f"pendulum_{n}" for n in ("awac", "cql", "iql", "td3bc")),
}
OTHER_ENVS = {
    *(f"lunarlander_{name}" for name in ("dqn", "rainbow", "sac", "td3")),
    *("acrobot_dqn", "bipedalwalker_tqc", "hopper_sac", "walker2d_ppo"),
    *("spread_ippo", "spread_iql"),
    *("speaker_ppo", "tag_ppo"),  # their nodes are compared in tests/nodes/test_group_graphs.py
}
REPEATED = {"cartpole_dqn", "crazyclimber_ppo", *OFFLINE, *OTHER_ENVS}  # in CI
SOLVED_SOON = [("cartpole_bc", 0), ("cartpole_ppo", 0), ("twostep_qmix", 0)]  # in some seconds
CASES = [
    pytest.param(graph, seed, marks=() if (graph, seed) in SOLVED_SOON else pytest.mark.exhaustive)
    for graph, seeds in SOLVED.items()
    for seed in seeds
]


@pytest.mark.parametrize("name", bundled_graphs())
def test_a_bundled_graph_is_sound_and_deterministic(name: str) -> None:
    checked = flowrl.load(name).check()
    assert checked.problems == []
    assert checked.warnings == []
    assert checked.deterministic
    assert checked.graph.about


# In CI the others run twice, too: serially and in threads (tests/sites/test_bundled_placements.py).
@pytest.mark.slow
@pytest.mark.parametrize("name", exhaustive_except([(g,) for g in REPEATED], bundled_graphs()))
def test_a_bundled_graph_repeats_itself_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the recording graph writes
    graph = flowrl.load(name, SHORT.get(name, {}))
    iters = 3 if name == "crazyclimber_ppo" else 12  # its games load slowly
    runs = [graph.run(seed=3, train_iters=iters, out=tmp_path / f"run{i}") for i in (1, 2)]
    assert runs[0].digest == runs[1].digest
    assert runs[0].train_iters == iters
    metrics = [written(tmp_path / f"run{i}" / "metrics.jsonl") for i in (1, 2)]
    assert metrics[0] == metrics[1]


def written(metrics: Path) -> bytes:
    """What a run wrote of itself; nothing, where no episode was over yet."""
    return metrics.read_bytes() if metrics.exists() else b""


@pytest.mark.slow
def test_a_graph_whose_package_is_missing_names_the_extra() -> None:
    code = f"""
import json, sys
sys.modules |= dict.fromkeys({[package for package, _ in PACKAGES.values()]})
import flowrl
for name in {list(PACKAGES)}:
    problems = flowrl.load(name).check().problems
    print(json.dumps([f"{{problem.what}} | {{problem.hint}}" for problem in problems]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = map(json.loads, run.stdout.splitlines())
    for lines, (package, extra) in zip(found, PACKAGES.values(), strict=True):
        assert lines
        assert all(line.endswith(f"| pip install 'flowrl[{extra}]'") for line in lines), lines
        assert all(f"needs the package '{package}'" in line for line in lines), lines


EDITS = {  # graph: the graph that it extends
    "cartpole_dqn_rnd": "cartpole_dqn",
    "cartpole_dqn_demos": "cartpole_dqn",
    "cartpole_dqn_per": "cartpole_dqn",
    "cartpole_dqn_gail": "cartpole_dqn",
    "cartpole_ppo_airl": "cartpole_ppo",
    "cartpole_ppo_gail": "cartpole_ppo",
    "cartpole_ppo_group": "cartpole_ppo",
    "cartpole_ppo_pwil": "cartpole_ppo",
    "cartpole_rbc": "cartpole_bc",
    "cartpole_ppo_red": "cartpole_ppo",
    "cartpole_sqil": "cartpole_dqn",
    "cartpole_dagger": "cartpole_dqn",
    "cartpole_distillation": "cartpole_dagger",
    "mountaincar_dqn_icm": "mountaincar_dqn",
    "mountaincar_dqn_rnd": "mountaincar_dqn",
    "pendulum_sac_trex": "pendulum_sac",
}


@pytest.mark.parametrize("name", EDITS)
def test_the_edits_that_users_come_for_change_at_most_six_lines(name: str) -> None:
    text = (graphs_folder() / f"{name}.yaml").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert lines[0] == f"extends: {EDITS[name]}"
    headings = ("extends:", "about:", "nodes:", "edges:")
    # SQIL's policy gets other settings than that of its base, which is no part of the edit.
    headings += ("policy:",) if name == "cartpole_sqil" else ()
    assert len([line for line in lines if not line.startswith(headings)]) <= 6


@pytest.mark.slow
def test_a_run_can_write_the_demonstrations_that_another_learns_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flowrl.load("cartpole_dqn_record").run(train_iters=96, out=tmp_path / "a")
    demos = flowrl.load("cartpole_dqn_demos", {"demos.path": str(tmp_path / "cartpole_demos.npz")})
    assert demos.run(train_iters=16, out=tmp_path / "b").train_iters == 16


CHECKPOINTS = [path.stem for path in sorted((graphs_folder() / "checkpoints").iterdir())]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_bundled_checkpoint_is_small_and_has_no_learner_in_it(name: str) -> None:
    path = graphs_folder() / "checkpoints" / f"{name}.safetensors"
    assert path.stat().st_size < 100_000
    assert name in bundled_graphs()
    with pytest.raises(RunError, match="no state of a learner"):
        read_whole(path, "learner")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_bundled_checkpoint_plays_its_graph_as_well_as_the_goal(name: str) -> None:
    """If the graph has changed since, `python -m bench checkpoints` makes it again."""
    found = flowrl.load(name).check()
    if found.problems:
        pytest.skip(f"{name}: {found.problems[0].what}")
    goal = found.graph.nodes["evaluator"].config.stop_value
    assert evaluate_checkpoint(name, seed=5).metrics["return_mean"] >= goal - 0.05 * abs(goal)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), CASES)
def test_a_bundled_graph_solves_its_task(name: str, seed: int, tmp_path: Path) -> None:
    graph = flowrl.load(name)
    evaluator = graph.check().graph.nodes["evaluator"].config
    result = graph.run(seed=seed, out=tmp_path / "run")
    assert result.status == "solved", json.dumps(result.as_dict())
    if evaluator.average == "mean":  # another average is not in the result of the run
        assert result.eval_return is not None
        assert result.eval_return >= evaluator.stop_value
