"""The kind of env manager is not semantics: the same graph and seed give the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.api import load

KINDS = ["env_manager", "sync_subprocess_env_manager", "thread_env_manager"]


def digest(kind: str, out: Path) -> str:
    result = load("cartpole_dqn", {"envs.type": kind}).run(train_iters=40, out=out / kind)
    assert result.deterministic
    return result.digest


@pytest.mark.slow
@pytest.mark.real_processes
def test_the_digest_is_the_same_in_this_thread_in_processes_and_in_threads(
    tmp_path: Path,
) -> None:
    assert len({digest(kind, tmp_path) for kind in KINDS}) == 1


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        ({"envs.type": "async_subprocess_env_manager"}, "in the order in which they become ready"),
        ({"envs.max_retry": 3}, "failed envs are restarted"),
    ],
)
def test_check_reports_why_two_runs_may_differ(sets: dict, why: str) -> None:
    checked = load("cartpole_dqn", sets).check()
    assert any(why in reason for reason in checked.reasons)
