"""The collector: acts with the newest weights and gives a fixed number of rows in each firing."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.batch import Array, Batch
from flowrl.config import Config as BaseConfig
from flowrl.config import PartSpec, param, part
from flowrl.node import Facts, Known, Node
from flowrl.nodes.collectors.transitions import row_schema, step_schema, transitions
from flowrl.nodes.envs.steps import Episode, episode_metrics
from flowrl.nodes.observations import flat
from flowrl.nodes.policies.policy import ActMode, Policy, policy_for
from flowrl.ports import Link, Out, StateIn
from flowrl.state import State


class SampleCollector(Node):
    """Each token holds the next `n_sample` rows in the order of time, sorted by env.

    Nothing is thrown away: steps whose row is in no token yet (there are more envs than rows left,
    or their n-step window is not whole) wait for the next firing. A step counts when its row is
    given, so every firing counts `n_sample` env steps.
    """

    role = "collector"
    envs: Any = Link("env_manager")
    weights = StateIn("weights")
    data = Out("samples")

    class Config(BaseConfig):
        n_sample: int = param(96, "rows in each token, over all envs", ge=1)
        policy: Any = part("policy", "what acts", shared="policy", phase=True)
        log_every_steps: int = param(1000, "env steps between two reports of episodes", ge=1)

    @classmethod
    def describe(cls, config: Any, known: Known) -> Facts:
        """Rows and env steps of one firing."""
        spec = known.links["envs"]
        policy = policy_for(config.policy, spec.obs, spec.action)
        return Facts(
            outs={"data": row_schema(spec.obs, spec.action, policy.collect_columns())},
            rows={"data": config.n_sample},
            env_steps=config.n_sample,
        )

    def setup(self) -> None:
        """The policy of the graph says what rows are, also while another one acts."""
        spec = self.envs.spec()
        self._count = spec.count
        self._policy = policy_for(self.config.policy, spec.obs, spec.action)
        self._columns = step_schema(spec.obs, spec.action, self._policy.collect_columns())
        self._names = [n for n in self._policy.collect_columns() if n != "action"]
        self.reset_policy(self._policy)
        self._forget()

    def fire(self, weights: State | None) -> Batch:
        """Collect with these weights."""
        if weights is not None and weights is not self._weights:
            self._mode.load(weights)
            self._weights = weights
        return self.collect()

    def collect(self, n_sample: int | None = None) -> Batch:
        """The next rows, `n_sample` by default as configured."""
        n = n_sample or self.config.n_sample
        nstep = self._policy.nstep
        episodes = self._step(-(-(self._given + n) // self._count) + nstep - 1 - self._taken)
        rows = transitions(self._steps, self._policy.gamma, nstep)
        batch = self._next_rows(rows, n)
        self._report(n, episodes)
        return batch

    def reset_policy(self, policy: Policy | PartSpec | ActMode) -> None:
        """From now on let another policy act; what rows mean (n-step, discount, columns) stays."""
        mode = policy
        if isinstance(policy, Policy | PartSpec):
            spec = self.envs.spec()
            policy = policy_for(policy, spec.obs, spec.action)
            missing = sorted(set(self._names) - set(policy.collect_columns()))
            if missing:
                raise ValueError(
                    f"{type(policy).__name__} does not give the column '{missing[0]}' that rows of "
                    f"{type(self._policy).__name__} have; let a policy act that does"
                )
            mode = policy.collect_mode(self.ctx.seed_for("collect"))
        self._mode: Any = mode
        self._weights: State | None = None

    def reconfigure(self, policy: Any) -> None:
        """A warm-up phase lets another policy act."""
        self.reset_policy(policy)

    def reset_env(self, envs: Any = None) -> None:
        """Go on in new episodes, of other envs if given; steps without a row are dropped."""
        self.envs = envs or self.envs
        self._count = self.envs.spec().count
        self._forget()

    def reset(self, policy: Policy | PartSpec | ActMode | None = None, envs: Any = None) -> None:
        """Begin anew with the policy and the envs that are given, or those of before."""
        self.reset_policy(policy or self._policy)
        self.reset_env(envs)

    def _forget(self) -> None:
        self._obs: Array | None = None
        self._steps = {name: c.empty(self._count, 0) for name, c in self._columns.items()}
        self._taken = 0  # steps that each env has taken
        self._given = 0  # rows that were given, over all envs
        self._finished: list[Episode] = []  # since the last report
        self._unreported = 0  # rows since then

    def _step(self, steps: int) -> list[Episode]:
        """Take so many steps in every env, behind those that wait: columns (B, T, …)."""
        waiting = self._taken - self._given // self._count
        store = {n: c.empty(self._count, waiting + steps) for n, c in self._columns.items()}
        for name, array in self._steps.items():
            store[name][:, :waiting] = array[:, array.shape[1] - waiting :]
        self._steps = store
        self._taken += steps
        return self._fill(store, waiting)

    def _fill(self, store: dict[str, Array], waiting: int) -> list[Episode]:
        obs = self.envs.reset() if self._obs is None else self._obs
        of_step = [store[n] for n in ("reward", "terminated", "truncated", "next_obs")]
        episodes: list[Episode] = []
        for t in range(waiting, store["obs"].shape[1]):
            acted = self._mode.forward(obs)
            stepped = self.envs.advance(acted["action"])
            store["obs"][:, t] = obs
            store["action"][:, t] = acted["action"]
            for name in self._names:
                store[name][:, t] = acted[name]
            obs, *gave, ended, _ = stepped
            for array, value in zip(of_step, gave):  # noqa: B905 (hot)
                array[:, t] = value
            if ended:
                episodes += ended
        self._obs = obs
        return episodes

    def _next_rows(self, rows: dict[str, Array], n: int) -> Batch:
        """The next `n` rows, sorted by env; `rows` (B, M, …) begins with them."""
        count, first = self._count, self._given % self._count
        self._given += n
        envs = np.arange(count)
        stop = (first + n - envs + count - 1) // count
        rows["last"][envs, stop - 1] = True  # what follows is in another token, or of another env
        if first == 0 and n % count == 0:
            return Batch(flat({k: v.reshape(n, *v.shape[2:]) for k, v in rows.items()}))
        time = np.arange(rows["last"].shape[1])
        chosen = (time >= (envs < first)[:, None]) & (time < stop[:, None])
        return Batch(flat({name: array[chosen] for name, array in rows.items()}))

    def _report(self, n: int, episodes: list[Episode]) -> None:
        self.ctx.count(env_steps=n, episodes=len(episodes))
        self._finished += episodes
        self._unreported += n
        if self._unreported >= self.config.log_every_steps and self._finished:
            self.ctx.metrics(episode_metrics(self._finished))
            self._finished, self._unreported = [], 0
