"""The collector of envs whose agents are in groups: each has a policy, weights and a stream of rows of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowrl.core.batch import Batch
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import named_parts, param
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.node import Node
from flowrl.core.ports import Link, Out
from flowrl.core.state import State
from flowrl.nodes.collectors.collector import requested_count
from flowrl.nodes.collectors.group_stream import GroupStream, stream_schema
from flowrl.nodes.collectors.grouped_envs import GroupedEnvs
from flowrl.nodes.collectors.joined_managers import join_specs
from flowrl.nodes.devices import device_param
from flowrl.nodes.envs.steps import Episode, episode_metrics
from flowrl.nodes.group_policies import (
    acts_without_weights,
    group_facts,
    group_policies,
    weights_by_group,
    weights_ports,
)
from flowrl.nodes.origin import ORIGIN_SCHEMA
from flowrl.nodes.policy import Policy

if TYPE_CHECKING:
    from typing_extensions import Self


Unreported = tuple[str, list[Episode], int]  # of a group: its episodes, and its dropped steps


class GroupCollector(Node):
    """Each token of a group holds at least its next `n_sample` steps, sorted by agent and then by time.

    Each group NAME has the output NAME and, if its policy needs weights, the state NAME_weights. All envs are stepped
    until every group has enough steps, and a token has all that are complete. The run counts steps of
    envs, however many agents they have.
    """

    role = "collector"
    may_end_run = False
    envs: Any = Link(
        "env_manager", many=True, about="one manager, or several of the same kind of env"
    )

    class Config(BaseConfig):
        policies: Any = named_parts(
            "policy", "the policy that acts for each group, by its name", shared="policy"
        )
        n_sample: int = param(
            96,
            "the fewest steps of each group in a token, over all its agents in all envs",
            ge=1,
        )
        most_steps: int = param(
            100_000,
            "steps of each env for one token; if a group does not have enough rows then, it is an error, as its agents "
            "may never act",
            ge=1,
        )
        device: str = device_param("where the networks of all groups act")
        origin: bool = param(False, f"rows also have the columns {', '.join(ORIGIN_SCHEMA)}")
        counts: bool = param(
            True,
            "whether its env steps and episodes count for the run: for limits, schedules and reports",
        )
        log_every_steps: int = param(
            1000, "env steps between two reports of finished episodes", ge=1
        )

    @classmethod
    def configured(cls, config: Any) -> type[Self]:
        outs = {
            name: Out(
                "samples", optional=acts_without_weights(policy), about=f"of the group {name}"
            )
            for name, policy in config.policies.items()
        }
        return cls.with_ports({**outs, **weights_ports(config.policies)})

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        spec = join_specs(surroundings.links["envs"])
        policies = group_policies(config, spec)
        _check_policies(policies)
        outs = {
            name: stream_schema(spec.groups[name], policy, config.origin)
            for name, policy in policies.items()
        }
        facts = group_facts(config, policies, surroundings.runs_here, explores=True)
        return Facts(
            outs=outs,
            cuts_episodes=frozenset(outs),
            env_steps=None if config.counts else 0,
            **facts,
        )

    def setup(self) -> None:
        self._grouped = GroupedEnvs(self.envs)
        policies = group_policies(self.config, self._grouped.spec())
        _check_policies(policies)
        self._streams = {
            name: GroupStream(name, self._grouped.rows[name], policy, self.config, self.ctx)
            for name, policy in policies.items()
        }
        self.envstep = 0  # steps of all envs
        self._has_begun = False  # whether episodes have begun in the envs
        self._unreported_steps = 0

    def fire(self, *weights: State) -> dict[str, Batch]:
        """Act with the newest weights until every group has enough rows."""
        return self.collect(weights=weights_by_group(self.config.policies, weights))

    def collect(
        self, n_sample: int | None = None, weights: Mapping[str, State] | None = None
    ) -> dict[str, Batch]:
        """Return the next rows of each group; act with `weights` from now on, if given."""
        n = requested_count("n_sample", n_sample, self.config.n_sample)
        for name, state in (weights or {}).items():
            self._streams[name].load(state)
        streams = [*self._streams.values()]
        if not self._has_begun:
            self._has_begun = True
            self._grouped.reset()
            for stream in streams:
                stream.begin_episodes()
        taken = env_steps = env_episodes = 0
        while any(stream.complete_steps < n for stream in streams):
            if taken == self.config.most_steps:
                self._refuse_to_go_on(n)
            for stream in streams:
                stream.begin_step()
            for stream in streams:
                stream.end_step()
            steps = self._grouped.steps
            assert steps is not None
            taken += 1
            env_steps += self._grouped.count - len(steps.failed)
            env_episodes += len(steps.episodes)
        self._report(env_steps, env_episodes)
        return {name: stream.take_rows() for name, stream in self._streams.items()}

    def reset_env(self) -> None:
        """Continue with new episodes; steps that are in no row yet are dropped."""
        self._has_begun = False
        for stream in self._streams.values():
            stream.restart()

    def _refuse_to_go_on(self, n: int) -> None:
        counts = {name: stream.complete_steps for name, stream in self._streams.items()}
        group = min(counts, key=lambda name: counts[name])
        raise ValueError(
            f"the group {group} has {counts[group]} of {n} steps after {self.config.most_steps:,} steps of each env; "
            "do its agents ever act? give this node a smaller `n_sample`, or more `most_steps`"
        )

    def _report(self, env_steps: int, episodes: int) -> None:
        """Count the steps and episodes of the envs, and report metrics of each group if they are due."""
        self.envstep += env_steps
        if self.config.counts:
            self.ctx.count(env_steps=env_steps, episodes=episodes)
        self._unreported_steps += env_steps
        if self._unreported_steps >= self.config.log_every_steps and self._unreported():
            self._report_groups(self._unreported())
            self._unreported_steps = 0
            for stream in self._streams.values():
                stream.episodes, stream.dropped_steps = [], 0
        self._leave_for_cut()

    def _unreported(self) -> list[Unreported]:
        """The episodes of each group that are in no report yet, if there are any, and its dropped steps."""
        found = [(n, s.episodes[:], s.dropped_steps) for n, s in self._streams.items()]
        return [one for one in found if one[1] or one[2]]

    def _report_groups(self, groups: list[Unreported]) -> None:
        metrics: dict[str, float] = {}
        for name, episodes, dropped_steps in groups:
            found = episode_metrics(episodes) if episodes else {}
            metrics |= {f"{name}/{key}": value for key, value in found.items()}
            if dropped_steps:
                metrics[f"{name}/dropped_steps"] = dropped_steps
        self.ctx.metrics(metrics)

    def _leave_for_cut(self) -> None:
        """Let what is in no report yet be reported where the run is cut, if it is cut before the next report."""
        left = self._unreported()
        self.ctx.report_at_cut((lambda: self._report_groups(left)) if left else None)

    def state_dict(self) -> dict[str, Any]:
        """The state that the next tokens depend on, without the weights and the envs."""
        return {
            "envstep": self.envstep,
            "has_begun": self._has_begun,
            "unreported_steps": self._unreported_steps,
            "groups": {name: stream.state_dict() for name, stream in self._streams.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with the same policies."""
        self.envstep, self._has_begun = int(state["envstep"]), bool(state["has_begun"])
        self._unreported_steps = int(state["unreported_steps"])
        for name, stream in self._streams.items():
            stream.load_state_dict(state["groups"][name])
        self._leave_for_cut()


def _check_policies(policies: Mapping[str, Policy]) -> None:
    for name, policy in policies.items():
        if policy.nstep > 1 and policy.unroll_steps is not None:
            what = f"{type(policy).__name__} learns from unrolls, whose rewards nothing sums"
            hint = "let it sum them itself, and give it `nstep: 1`"
            raise UnsoundError(what, hint, f"policies.{name}")
