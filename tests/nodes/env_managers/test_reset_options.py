"""Options of `reset`: they hold from each env's next episode on, in every kind of manager, and survive failures."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.nodes.collectors.joined_managers import join_managers
from flowrl.nodes.env_managers.crash_files import replay_crash_file
from flowrl.nodes.env_managers.env_error import EnvError
from flowrl.nodes.env_managers.vector_env_manager import VectorEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.pettingzoo import PettingZoo
from tests.nodes.env_managers.manager_kinds import KINDS, OTHERS, open_manager, steps_are_equal

kinds = pytest.mark.parametrize("kind", KINDS)


def zeros(count: int = 3) -> Any:
    return np.zeros(count, np.int64)


@kinds
def test_options_hold_from_the_next_episode_of_each_env_on(kind: str) -> None:
    with open_manager(kind, "OptionEnv") as envs:
        envs.set_reset_options({"shift": 1})
        assert envs.reset().tolist() == [[1, 0]] * 3
        envs.advance(zeros(1), [1])  # one step ahead of the others
        envs.set_reset_options({"shift": 2, "length": 2})
        found = [envs.advance(zeros()).obs.tolist() for _ in range(6)]
        assert [obs[1] for obs in found] == [[1, 2], [1, 3], [2, 0], [2, 1], [2, 0], [2, 1]]
        assert [obs[0] for obs in found] == [[1, 1], [1, 2], [1, 3], [2, 0], [2, 1], [2, 0]]
        envs.set_reset_options({})
        assert [envs.advance(zeros()).obs[0, 0] for _ in range(3)] == [2, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS)
def test_options_that_change_give_the_same_bits_as_in_the_serial_kind(kind: str) -> None:
    with open_manager("serial", "OptionEnv") as base, open_manager(kind, "OptionEnv") as other:
        base.reset(), other.reset()
        for k in range(40):
            if k % 3 == 0:
                options = {"shift": k, "length": 1 + k % 4}
                base.set_reset_options(options), other.set_reset_options(options)
            assert steps_are_equal(
                base.advance(zeros(1), [k % 3]), other.advance(zeros(1), [k % 3])
            )
            assert steps_are_equal(base.advance(zeros()), other.advance(zeros()))


@pytest.mark.slow
@kinds
def test_options_may_change_while_steps_are_pending(kind: str) -> None:
    """An episode that begins with the pending step may have the old or the new options; the history knows which."""
    with open_manager(kind, "OptionEnv") as envs, open_manager("serial", "OptionEnv") as other:
        envs.reset()
        for k in range(9):
            envs.send(np.arange(3), zeros())
            envs.set_reset_options({"shift": k})
            envs.recv(np.arange(3))
            other.load_state_dict(envs.state_dict())
            assert other.failures.unrestored_envs == 0
            envs.advance(zeros())


@pytest.mark.slow
@kinds
def test_a_restored_manager_replays_options(kind: str) -> None:
    with open_manager("serial", "OptionEnv") as envs, open_manager(kind, "OptionEnv") as other:
        envs.set_reset_options({"shift": 3})
        envs.reset()
        [envs.advance(zeros()) for _ in range(6)]
        envs.set_reset_options({"shift": 5})
        envs.advance(zeros())
        other.load_state_dict(envs.state_dict())
        assert other.failures.unrestored_envs == 0
        for _ in range(7):
            steps = envs.advance(zeros())
            assert steps_are_equal(steps, other.advance(zeros()))
        assert steps.obs[:, 0].tolist() == [5, 5, 5]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "sync, pre-reset"])
def test_a_worker_that_is_killed_changes_no_step(kind: str) -> None:
    with open_manager("serial", "OptionEnv") as base, open_manager(kind, "OptionEnv") as envs:
        for one in (base, envs):
            one.set_reset_options({"shift": 3})
            one.reset()
        for k in range(8):
            if k % 2:
                base.set_reset_options({"shift": k}), envs.set_reset_options({"shift": k})
            else:
                for worker in envs.pool.workers[::2]:
                    os.kill(worker.pid, signal.SIGKILL)
            for _ in range(3):
                assert steps_are_equal(base.advance(zeros()), envs.advance(zeros()))
        assert envs.failures.replaced_workers > 0
        assert envs.failures.dropped_trajectories == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "thread"])
def test_a_crash_file_has_the_options(kind: str, tmp_path: Path) -> None:
    with open_manager(kind, "OptionEnv", fails_at_shift=7.0) as envs:
        envs.set_reset_options({"shift": 7})
        envs.reset()
        envs.set_reset_options({"shift": 8})
        with pytest.raises(EnvError) as raised:
            [envs.advance(zeros()) for _ in range(2)]
        [text] = raised.value.files.values()
        assert json.loads(text)["options"] == {"shift": 7}
        (tmp_path / "crash.json").write_text(text)
        assert replay_crash_file(str(tmp_path / "crash.json"), print_line=lambda line: None)


def test_all_joined_managers_get_the_options() -> None:
    with open_manager("serial", "OptionEnv") as one, open_manager("thread", "OptionEnv") as two:
        joined = join_managers([one, two])
        joined.set_reset_options({"shift": 4})
        assert joined.reset()[:, 0].tolist() == [4] * 6


def test_envs_with_agents_get_options() -> None:
    env = PettingZoo(id="tests.nodes.envs.agent_envs:OptionAgents", agents="shared")
    with open_manager("serial", env=env) as envs:
        rows = join_managers(envs)
        rows.set_reset_options({"first": 9})
        assert rows.reset()[:, 0].tolist() == [9.0] * rows.spec().count


def test_a_pool_refuses_options() -> None:
    pool = VectorEnvManager(env=Gymnasium(id="CartPole-v1"), count=2)
    pool.set_reset_options({})
    with pytest.raises(ValueError, match="a pool begins the episodes of its envs itself"):
        pool.set_reset_options({"length": 3})
    pool.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": float("nan")}, "the option 'length' is nan; give a finite number"),
        ({f"option {k}": k for k in range(100)}, "bytes of JSON; the limit is 1024; give fewer"),
    ],
)
def test_unsuitable_options_are_refused(options: dict[str, float], message: str) -> None:
    with open_manager("serial", "OptionEnv") as envs, pytest.raises(ValueError, match=message):
        envs.set_reset_options(options)
