"""Where envs live is not semantics either: the same graph and seed give the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.api import load

KINDS = ["env_manager", "sync_subprocess_env_manager", "thread_env_manager"]


def digest(kind: str, out: Path) -> str:
    end = load("cartpole_dqn", {"envs.type": kind}).run(train_iters=40, out=out / kind)
    assert end.deterministic
    return end.digest


@pytest.mark.real_processes
def test_a_run_has_the_same_digest_with_its_envs_here_in_processes_or_in_threads(
    tmp_path: Path,
) -> None:
    assert len({digest(kind, tmp_path) for kind in KINDS}) == 1


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        ({"envs.type": "async_subprocess_env_manager"}, "in the order in which they become ready"),
        ({"envs.max_retry": 3}, "envs that fail are begun anew"),
    ],
)
def test_what_makes_two_runs_differ_is_told_before_them(sets: dict, why: str) -> None:
    checked = load("cartpole_dqn", sets).check()
    assert any(why in reason for reason in checked.reasons)
