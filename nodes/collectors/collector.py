"""What collectors have in common: envs, a policy that acts in them, and reports of episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

from flowrl.core.batch import Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import PartSpec, param, part
from flowrl.core.errors import shortened_repr
from flowrl.core.node import Node, Surroundings
from flowrl.core.ports import Link, Out, StateIn
from flowrl.core.state import State
from flowrl.nodes.collectors.acting import Acting
from flowrl.nodes.collectors.fleet import fleet, joined
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.envs.steps import Episode, episode_metrics
from flowrl.nodes.origin import NO_WEIGHTS, ORIGIN, Origin
from flowrl.nodes.policy import AnyActMode, Policy, policy_for

Actor = Policy | PartSpec | AnyActMode | Callable[[int], AnyActMode]


class Collector(Node):
    """Acts with the weights that it is given; the graph's policy says what rows are."""

    role = "collector"
    envs: Any = Link("env_manager", many=True, about="one manager, or several of like envs")
    weights = StateIn("weights")
    data = Out("samples")

    class Config(BaseConfig):
        policy: Any = part("policy", "what acts", shared="policy", phase=True)
        origin: bool = param(False, f"rows also say {', '.join(ORIGIN)}")
        log_every_steps: int = param(1000, "env steps between two reports of episodes", ge=1)

    @classmethod
    def described(cls, config: Any, surroundings: Surroundings) -> tuple[EnvSpec, Policy]:
        """The envs that are linked, and the policy for them."""
        spec = joined(surroundings.links["envs"])
        return spec, policy_for(config.policy, spec.obs, spec.action)

    @classmethod
    def extra_columns(cls, config: Any, policy: Policy) -> Schema:
        """What rows have beside what the env and the learner ask of every row."""
        origin = ORIGIN if config.origin else {}
        return {**policy.collect_columns(), **policy.memory_columns(), **origin}

    def setup(self) -> None:
        """The policy of the graph says what rows are, also while another one acts."""
        self.envs = fleet(self.envs)
        spec = self.envs.spec()
        self._policy = policy_for(self.config.policy, spec.obs, spec.action)
        self.envstep = 0  # env steps whose rows were given
        self._mode: Any = None
        self._weights: State | None = None
        self._own_weights = False  # whoever acts has its own, or needs none
        self._start()
        self.reset_policy(self._policy)

    def _start(self) -> None:
        """Begin anew in the envs."""
        self._origin: Origin | None = None
        if self.config.origin:
            self._origin = Origin(self.ctx.replica, self.envs.spec().count, self._version)
        self._acting = Acting(self.envs, self._policy.memory_columns(), self._origin)
        if self._mode is not None:
            self._acting.let(self._mode, self._policy.collect_columns())
        self._finished: list[Episode] = []  # since the last report
        self._unreported = 0  # env steps since then
        self._dropped = 0  # env steps that were lost with failed episodes, since then

    def _load(self, weights: State | None) -> None:
        """Act with these from now on; with none, go on with those of before."""
        if weights is not None and weights is not self._weights:
            self._mode.load(weights)
            self._weights = weights
            self._tell_version()

    @property
    def _version(self) -> int:
        """That of the weights that act."""
        if self._weights is None or self._own_weights:
            return NO_WEIGHTS
        return self._weights.version

    def _tell_version(self) -> None:
        if self._origin is not None:
            self._origin.weights = self._version

    def reset_policy(self, policy: Actor) -> None:
        """From now on let another policy act; what rows mean (n-step, discount, columns) stays.

        A policy, one of its modes, or how to make one (`policy.collect_mode`).
        """
        spec = self.envs.spec()
        if isinstance(policy, PartSpec):
            policy = policy_for(policy, spec.obs, spec.action)
        mode: Any = policy.collect_mode if isinstance(policy, Policy) else policy
        owner = getattr(mode, "__self__", None)
        if isinstance(owner, Policy):
            self._demand_columns(owner)
        if callable(mode) and not isinstance(mode, type):
            mode = mode(self.ctx.seed_for("collect"))
        if not hasattr(mode, "forward") or isinstance(mode, type):
            what = f"{shortened_repr(policy)} does not act"
            raise TypeError(f"{what}; give a policy, one of its modes, or `policy.collect_mode`")
        self._mode, self._weights = mode, None
        self._own_weights = isinstance(owner, Policy) and owner.acts_without_weights
        self._tell_version()
        self._acting.let(self._mode, self._policy.collect_columns())

    def _demand_columns(self, policy: Policy) -> None:
        missing = sorted(set(self._policy.collect_columns()) - set(policy.collect_columns()))
        if missing:
            raise ValueError(
                f"{type(policy).__name__} does not give the column '{missing[0]}' that rows of "
                f"{type(self._policy).__name__} have; let a policy act that does"
            )

    def reconfigure(self, policy: Any) -> None:  # type: ignore[override]  # by name alone
        """A warm-up phase lets another policy act."""
        self.reset_policy(policy)

    def reset_env(self, envs: Any = None) -> None:
        """Go on in new episodes, of other envs if given; steps without a row are dropped."""
        others = fleet(envs or self.envs)
        joined([self.envs.spec(), others.spec()])
        self.envs = others
        self._start()

    def reset(self, policy: Actor | None = None, envs: Any = None) -> None:
        """Begin anew with the policy and the envs that are given, or those of before."""
        self.reset_env(envs)
        self.reset_policy(policy or self._policy)

    def _report(self, env_steps: int, episodes: Sequence[Episode], dropped: int) -> None:
        self.envstep += env_steps
        self.ctx.count(env_steps=env_steps, episodes=len(episodes))
        self._finished += episodes
        self._unreported += env_steps
        self._dropped += dropped
        if self._unreported >= self.config.log_every_steps and self._finished:
            told = episode_metrics(self._finished)
            self.ctx.metrics({**told, "dropped_steps": self._dropped} if self._dropped else told)
            self._finished, self._unreported, self._dropped = [], 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next token depends on, beside the weights and the envs."""
        return {
            "envstep": self.envstep,
            "origin": None if self._origin is None else self._origin.state_dict(),
            "acting": self._acting.state_dict(),
            "mode": self._mode.state_dict() if hasattr(self._mode, "state_dict") else {},
            "finished": [tuple(episode) for episode in self._finished],
            "unreported": [self._unreported, self._dropped],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, with the policy that acts now."""
        self.envstep = int(state["envstep"])
        self._acting.load_state_dict(state["acting"])
        if self._origin is not None:
            self._origin.load_state_dict(state["origin"])
        if hasattr(self._mode, "load_state_dict"):
            self._mode.load_state_dict(state["mode"])
        self._finished = [Episode(*episode) for episode in state["finished"]]
        self._unreported, self._dropped = state["unreported"]


def amount(name: str, given: int | None, default: int) -> int:
    """How many are asked for by hand; by default as configured."""
    if given is None:
        return default
    if not isinstance(given, Integral) or given < 1:
        raise ValueError(f"{name} is {given!r}; it must be a whole number from 1 on")
    return int(given)
