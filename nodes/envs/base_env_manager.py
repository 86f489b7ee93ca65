"""The env manager that steps its envs one after another, in the thread of whoever calls it."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from flowrl.batch import Array
from flowrl.node import Unsound
from flowrl.nodes.envs.action_log import ActionLog
from flowrl.nodes.envs.checks import Bad, observations, rewards
from flowrl.nodes.envs.env_manager import EnvManager
from flowrl.nodes.envs.failures import Counts, Failures, Tolerant, why_nondeterministic
from flowrl.nodes.envs.steps import Episode, Steps
from flowrl.nodes.envs.watchdog import Watchdog
from flowrl.nodes.observations import Nested, Observed

RAISED = (Exception, SystemExit)  # an env that calls sys.exit() has failed too
Failed = dict[int, BaseException]  # by row of a step


class BaseEnvManager(EnvManager):
    """Some envs of one kind, stepped in turn. The fastest kind for envs that are cheap."""

    class Config(Tolerant):
        pass

    @classmethod
    def nondeterministic(cls, config: Any) -> str:
        """Retries are."""
        return why_nondeterministic(config)

    def setup(self) -> None:
        """Envs are made at the first reset."""
        super().setup()
        self._obs_dtype = np.dtype(self._obs_column.dtype)
        self._envs: list[Any] = []
        self._failures = Failures(self.config, self.ctx)
        limits = {"step": self.config.step_timeout_s, "reset": self.config.reset_timeout_s}
        self._watchdog = Watchdog(limits, self._late)

    def _late(self, index: int, doing: str, took_s: float) -> None:
        self._failures.counts.late += 1
        limit = getattr(self.config, f"{doing}_timeout_s")
        self.ctx.log(f"env {index}: {doing} took {took_s:.1f} s; {doing}_timeout_s is {limit:g}")

    @property
    def failures(self) -> Counts:
        """What happened so far."""
        return self._failures.counts

    def reset(self) -> Array:
        """Begin a new episode in each env; gives the first observations (B, …)."""
        count = self.config.count
        if not self._envs:
            self._envs = [None] * count
            self._step_one: list[Callable[[Any], Any]] = [_not_made] * count
        self._accounts.restart()
        self._log = ActionLog(count)
        self._sent: dict[int, Any] = {}
        obs = self._begin(self._ids)
        self._failures.tell()
        return obs

    def advance(self, actions: Array, ids: Sequence[int] | None = None) -> Steps:
        """Step all envs, or those of `ids`, each with its row of `actions` (B, …)."""
        at = self._ids if ids is None else ids
        acts = self._acts(actions, len(at)).copy()  # the log keeps them
        if self._sent:
            self._refuse_sent(at)
        return self._advance(at, acts)

    def send(self, ids: Array, actions: Array) -> None:
        """Begin to step these envs, each with its row of `actions`; `recv` gives what came of it."""
        at = np.asarray(ids).tolist()
        acts = self._acts(actions, len(at))
        self._refuse_sent(at)
        self._sent.update(zip(at, acts, strict=True))

    def recv(self, ids: Array | None = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of these envs, in this order; without `ids`, of all that were sent, as sent.

        At least `least` of them: here none waits for another, so all are always ready.
        """
        at = list(self._sent) if ids is None else np.asarray(ids).tolist()
        if missing := set(at) - self._sent.keys():
            raise ValueError(f"env {min(missing)} was not sent; send it before it is received")
        acts = np.array([self._sent.pop(index) for index in at], self._action_dtype)
        return np.array(at, np.int64), self._advance(at, acts)

    def _refuse_sent(self, at: Sequence[int]) -> None:
        if self._sent and (twice := self._sent.keys() & set(at)):
            raise ValueError(
                f"env {min(twice)} is being stepped; receive it before it is sent again"
            )

    # stepping

    def _advance(self, at: Sequence[int], acts: Array) -> Steps:
        everyone = None if at is self._ids else np.asarray(at)
        self._log.add(everyone, acts)
        failed: Failed = {}
        seen, given, terminated, truncated = self._step(at, acts, failed)
        try:
            if failed:
                return self._mixed(at, seen, given, terminated, truncated, failed)
            next_obs = observations(seen, self._obs_column, self._obs_dtype)
            reward = rewards(given)
        except Bad as bad:
            failed[bad.k] = bad
            return self._mixed(at, seen, given, terminated, truncated, failed)
        self._accounts.count_steps(everyone, reward)
        obs, episodes = next_obs, []
        if any(terminated) or any(truncated):
            ends = [k for k in range(len(at)) if terminated[k] or truncated[k]]
            episodes = [self._end(at[k]) for k in ends]
            obs = next_obs.copy()
            obs[ends] = self._begin([at[k] for k in ends])
            self._failures.tell()
        final, cut = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        return Steps(obs, reward.astype(np.float32), final, cut, next_obs, episodes)

    def _step(self, at: Sequence[int], acts: Array, failed: Failed) -> tuple[list[Any], ...]:
        """What each env gave; that of those that failed is nothing."""
        seen, given, terminated, truncated = [], [], [], []
        step_one = self._step_one
        left = zip(at, acts)  # noqa: B905 (lengths are checked; this loop is hot)
        while True:
            try:
                for index, act in left:
                    obs, reward, final, cut, _ = step_one[index](act)
                    seen.append(obs)
                    given.append(reward)
                    terminated.append(final)
                    truncated.append(cut)
                return seen, given, terminated, truncated
            except RAISED as error:
                failed[len(seen)] = error
                for column, nothing in zip(
                    (seen, given, terminated, truncated), (None, 0.0, False, False), strict=True
                ):
                    column.append(nothing)

    def _mixed(
        self,
        at: Sequence[int],
        seen: list[Any],
        given: list[Any],
        terminated: list[Any],
        truncated: list[Any],
        failed: Failed,
    ) -> Steps:
        """The steps, where some failed: those are void, and their envs begin anew."""
        next_obs, reward, good = self._good_rows(seen, given, failed)
        self._accounts.count_steps([at[k] for k in good], reward[good])
        obs, episodes = next_obs.copy(), []
        final, cut = np.zeros(len(at), np.bool_), np.zeros(len(at), np.bool_)
        for k, index in enumerate(at):
            if k in failed:
                lost = int(self._accounts.lengths[index]) + 1
                self._failed(index, lost, failed[k])
                obs[k] = next_obs[k] = self._begin_one(index)
            elif terminated[k] or truncated[k]:
                final[k], cut[k] = terminated[k], truncated[k]
                episodes.append(self._end(index))
                obs[k] = self._begin_one(index)
        self._failures.tell()
        broken = sorted(failed)
        return Steps(obs, reward.astype(np.float32), final, cut, next_obs, episodes, broken)

    def _good_rows(
        self, seen: list[Any], given: list[Any], failed: Failed
    ) -> tuple[Array, Array, list[int]]:
        """The arrays, and which of their rows are good: what is not so has failed as well."""
        next_obs = np.zeros(len(seen), (self._obs_dtype, _shape(self._obs_column)))
        reward = np.zeros(len(seen))
        while True:
            good = [k for k in range(len(seen)) if k not in failed]
            try:
                if good:
                    found = [seen[k] for k in good]
                    next_obs[good] = observations(found, self._obs_column, self._obs_dtype)
                    reward[good] = rewards([given[k] for k in good])
                return next_obs, reward, good
            except Bad as bad:
                failed[good[bad.k]] = bad

    def _end(self, index: int) -> Episode:
        self._failures.ended(index)
        return self._accounts.end(index, getattr(self._envs[index], "unwrapped_return", None))

    # beginning

    def _begin(self, at: Sequence[int]) -> Array:
        obs = np.empty(len(at), (self._obs_dtype, _shape(self._obs_column)))
        for k, index in enumerate(at):
            obs[k] = self._begin_one(index)
        return obs

    def _begin_one(self, index: int) -> Any:
        """The first observation of an env's next episode, however many attempts that takes."""
        while True:
            seed = self._accounts.begin(index)
            self._log.begin(index)
            try:
                if self._envs[index] is None:
                    self._make(index)
                with self._watchdog.over("reset", index):
                    obs, _ = self._envs[index].reset(seed=seed)
                return observations([obs], self._obs_column, self._obs_dtype)[0]
            except Unsound:  # no failure of an env: it was never one
                raise
            except RAISED as error:
                self._failed(index, None, error)

    def _make(self, index: int) -> None:
        env = self._part.make(self._make_index(index))
        self._envs[index] = env
        self._step_one[index] = self._watchdog.watched("step", index, env.step)

    def _failed(self, index: int, lost: int | None, error: BaseException) -> None:
        """A step or a reset failed; if there is another attempt, wait for its time."""
        if not self._failures.failed(index, lost):
            self._fail(index, lost or 0, error)
        self.ctx.log(f"env {index}: {_said(error, lost)}; it is begun anew")
        time.sleep(self._failures.pause_s(index))
        if self._failures.renews(index):
            old, self._envs[index] = self._envs[index], None
            _close(old)

    def _fail(self, index: int, step: int, error: BaseException) -> NoReturn:
        self._failures.tell()
        taken, complete = self._log.of(index) if step else ([], True)
        seed, traced = self._accounts.seeds[index], "".join(traceback.format_exception(error))
        what = _said(error, step or None)
        raise self._error(index, seed, step, taken, what, traced, complete) from error

    # saving

    def state_dict(self) -> dict[str, Any]:
        """The episodes under way, by their seeds and actions: an env that keeps to them is as it was."""
        if not self._envs:
            return {"accounts": self._accounts.state_dict(), "actions": None}
        if self._sent:
            raise ValueError("steps are under way; receive them before the envs are saved")
        played = [self._log.of(index) for index in self._ids]
        long = [index for index in self._ids if not played[index][1]]
        if long:
            raise ValueError(f"env {long[0]}: its episode is too long to be saved by its actions")
        actions = [action for taken, _ in played for action in taken]
        wanted = (len(actions), *self._action_column.shape)
        kept = np.array(actions, self._action_dtype).reshape(wanted)
        return {"accounts": self._accounts.state_dict(), "actions": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Play the episodes again, up to where they were, and go on from there."""
        self.close()
        self._accounts.load_state_dict(state["accounts"])
        if state["actions"] is None:
            return
        count, lengths = self.config.count, self._accounts.lengths
        self._envs, self._step_one = [None] * count, [_not_made] * count
        self._log, self._sent = ActionLog(count), {}
        dealt = np.split(np.asarray(state["actions"]), np.cumsum(lengths)[:-1])
        for index, actions in enumerate(dealt):
            self._make(index)
            self._envs[index].reset(seed=self._accounts.seeds[index])
            self._play_again(index, actions)

    def _play_again(self, index: int, actions: Array) -> None:
        total, over = 0.0, False
        for action in actions:
            if over:
                break
            self._log.add(np.array([index]), action[None])
            _, reward, final, cut, _ = self._step_one[index](action)
            total += float(rewards([reward])[0])
            over = bool(final or cut)
        was = float(self._accounts.totals[index])
        if over or total != was:
            raise ValueError(
                f"env {index}: its episode had returned {was:g} so far, and {total:g} "
                f"{'and its end ' if over else ''}when it was played again: it does not follow from "
                "its seed and actions, so it cannot be restored; begin new episodes"
            )

    def close(self) -> None:
        """Close the envs; a later reset makes new ones."""
        self._watchdog.close()
        envs, self._envs = self._envs, []
        for env in envs:
            if env is not None:
                env.close()


def _not_made(action: Any) -> Any:
    raise RuntimeError("the env was not made")


def _close(env: Any) -> None:
    """What failed may fail again: it is given up in any case."""
    with contextlib.suppress(*RAISED):
        env.close()


def _said(error: BaseException, lost: int | None) -> str:
    if isinstance(error, Bad):
        return str(error)
    return f"{'reset' if lost is None else 'step'} raised {type(error).__name__}: {error}"


def _shape(observed: Observed) -> tuple[int, ...]:
    return () if isinstance(observed, Nested) else observed.shape
