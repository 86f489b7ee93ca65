"""The base of all collectors: their envs, actor and policies, and their reports of episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, ClassVar

from flowrl.core.batch import Array, Batch, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import PartSpec, param, part
from flowrl.core.errors import shortened_repr
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.node import Node, Role
from flowrl.core.ports import Link, Out, StateIn
from flowrl.core.state import Count, State
from flowrl.nodes.collectors.actor import Actor
from flowrl.nodes.collectors.joined_managers import join_managers, join_specs
from flowrl.nodes.configured_policies import policy_for, policy_of_mode
from flowrl.nodes.devices import available_device, device_param
from flowrl.nodes.envs.info import info_schema
from flowrl.nodes.envs.spec import EnvSpec, require_one_policy
from flowrl.nodes.envs.steps import Episode, episode_metrics
from flowrl.nodes.origin import (
    NO_WEIGHTS_VERSION,
    ORIGIN_SCHEMA,
    OriginTracker,
    collector_number,
    origin_schema,
)
from flowrl.nodes.policy import (
    AnyActMode,
    Policy,
    act_mode_state,
    env_settings,
    load_act_mode_state,
    use_device,
)

# A policy, one of its act modes, or a function from a seed to an act mode.
ActingPolicy = Policy | PartSpec | AnyActMode | Callable[[int], AnyActMode]


class Collector(Node):
    """Acts in envs with the newest weights.

    The rows are those of the graph's policy, even while another policy acts.
    """

    role: ClassVar[Role] = "collector"
    may_end_run = False
    envs: Any = Link(
        "env_manager", many=True, about="one manager, or several of the same kind of env"
    )
    weights = StateIn("weights")
    data = Out("samples")

    class Config(BaseConfig):
        policy: Any = part("policy", "the policy that acts", shared="policy", phase=True)
        device: str = device_param("where its networks act")
        origin: bool = param(False, f"rows also have the columns {', '.join(ORIGIN_SCHEMA)}")
        counts: bool = param(
            True,
            "whether its env steps and episodes count for the run: for limits, schedules and reports; "
            "false for an expert beside the agent",
        )
        log_every_steps: int = param(
            1000, "env steps between two reports of finished episodes", ge=1
        )

    @classmethod
    def spec_and_policy(cls, config: Any, surroundings: Surroundings) -> tuple[EnvSpec, Policy]:
        """The spec of the linked envs, and the policy for them."""
        spec = join_specs(surroundings.links["envs"])
        require_one_policy(spec)
        policy = policy_for(config.policy, spec.obs, spec.action, "policy")
        if not spec.takes_options and (options := env_settings(policy.command(Count()))):
            what = f"the envs of a pool take no options of `reset`, and the policy has {', '.join(options)}"
            hint = "leave `reset_options` out, or use another kind of env manager"
            raise UnsoundError(what, hint, "policy.reset_options")
        return spec, policy

    @classmethod
    def given_policy(cls, config: Any) -> Any:
        """What the parameters give as the policy of the rows."""
        return config.policy

    @classmethod
    def extra_columns(cls, config: Any, policy: Policy, spec: EnvSpec) -> Schema:
        """The columns of rows that depend on the policy, on `origin`, and on the env's `info`."""
        columns = {**policy.collect_columns(), **policy.memory_columns()}
        return {**columns, **cls.origin_columns(config, policy, spec), **info_schema(spec)}

    @classmethod
    def origin_columns(cls, config: Any, policy: Policy, spec: EnvSpec) -> Schema:
        """The origin columns of rows."""
        return origin_schema(spec.count) if config.origin else {}

    def setup(self) -> None:
        self.envs = join_managers(self.envs)
        spec = self.envs.spec()
        require_one_policy(spec)
        given = self.given_policy(self.config)
        self.policy = policy_for(given, spec.obs, spec.action)  # defines the rows
        self.envstep = 0  # env steps whose rows were returned
        self.mode: Any = None  # the act mode that acts
        self._estimator = self.policy.estimator()
        if self._estimator is not None:
            self._estimator.use_device(available_device(self.config.device))
        self._weights: State | None = None
        self._reset_options: dict[str, float] = {}  # that the envs have
        self._ignores_weights = False  # the acting policy has weights of its own, or none
        self._restart()
        self.reset_policy(self.policy if policy_of_mode(given) is None else given)

    def _restart(self) -> None:
        """Discard all steps that are in no row yet, and collect from new episodes."""
        self._origin: OriginTracker | None = None
        if self.origin_columns(self.config, self.policy, self.envs.spec()):
            number = collector_number(self.ctx)
            self._origin = OriginTracker(number, self.envs.spec().count, self._weights_version)
        self._actor = Actor(self.envs, self.policy.memory_columns(), self._origin, self.ctx)
        if self.mode is not None:
            self._actor.set_mode(self.mode, self.policy.collect_columns())
        # since the last report:
        self._episodes: list[Episode] = []
        self._unreported_steps = 0
        self._dropped_steps = 0  # of failed episodes

    def _load_weights(self, weights: State | None) -> None:
        """Act with these weights from now on; None keeps the current ones."""
        if weights is not None and weights is not self._weights:
            self.mode.load(weights)
            if self._estimator is not None:
                self._estimator.load(weights)
            self._weights = weights
            self._update_origin()
            self._set_reset_options(env_settings(weights.command))

    def _estimated(self, rows: Batch) -> Batch:
        """The rows with the columns that the policy has collectors compute from whole tokens."""
        return rows if self._estimator is None or not len(rows) else self._estimator.estimated(rows)

    def _set_reset_options(self, options: dict[str, float]) -> None:
        if options != self._reset_options:
            self.envs.set_reset_options(options)
            self._reset_options = options

    @property
    def _weights_version(self) -> int:
        if self._weights is None or self._ignores_weights:
            return NO_WEIGHTS_VERSION
        return self._weights.version

    def _update_origin(self) -> None:
        if self._origin is not None:
            self._origin.weights = self._weights_version

    def reset_policy(self, policy: ActingPolicy) -> None:
        """Let another policy act from now on. Discount and columns of the rows stay the same.

        `policy` is a policy, one of its act modes, or a function that makes one (`policy.collect_mode`).
        """
        spec = self.envs.spec()
        if isinstance(policy, PartSpec):
            policy = policy_for(policy, spec.obs, spec.action)
        mode: Any = policy.collect_mode if isinstance(policy, Policy) else policy
        owner = getattr(mode, "__self__", None)
        if isinstance(owner, Policy):
            self._check_columns(owner)
        if callable(mode) and not isinstance(mode, type):
            mode = mode(self.ctx.seed_for("collect"))
        if not hasattr(mode, "forward") or isinstance(mode, type):
            what = f"{shortened_repr(policy)} cannot act"
            raise TypeError(f"{what}; give a policy, one of its modes, or `policy.collect_mode`")
        use_device(mode, available_device(self.config.device))
        self.mode, self._weights = mode, None
        self._ignores_weights = isinstance(owner, Policy) and owner.acts_without_weights
        self._update_origin()
        self._actor.set_mode(self.mode, self.policy.collect_columns())

    def _check_columns(self, policy: Policy) -> None:
        missing = sorted(set(self.policy.collect_columns()) - set(policy.collect_columns()))
        if missing:
            raise ValueError(
                f"{type(policy).__name__} does not output the column '{missing[0]}', which rows of "
                f"{type(self.policy).__name__} have; let a policy act that does"
            )

    def reconfigure(self, policy: Any) -> None:  # type: ignore[override]  # called with keywords only
        """Let a warm-up phase's policy act."""
        self.reset_policy(policy)

    def reset_env(self, envs: Any = None) -> None:
        """Continue with new episodes, in other envs if given; steps that are in no row yet are dropped."""
        joined = join_managers(envs or self.envs)
        join_specs([self.envs.spec(), joined.spec()])  # raises if they differ
        self.envs = joined
        if self._reset_options:
            joined.set_reset_options(self._reset_options)
        self._restart()

    def reset(self, policy: ActingPolicy | None = None, envs: Any = None) -> None:
        """Restart, with another policy and other envs if given."""
        self.reset_env(envs)
        self.reset_policy(policy or self.policy)

    def _report(
        self, env_steps: int, episodes: Sequence[Episode], dropped_steps: int, actions: Array
    ) -> None:
        """Count the steps and episodes of a token with these actions, and report metrics if they are due."""
        self.envstep += env_steps
        if self.config.counts:
            self.ctx.count(env_steps=env_steps, episodes=len(episodes))
        self._episodes += episodes
        self._unreported_steps += env_steps
        self._dropped_steps += dropped_steps
        if self._unreported_steps >= self.config.log_every_steps and self._episodes:
            self.ctx.histograms({"action": actions})
            self._report_episodes(self._episodes, self._dropped_steps)
            self._episodes, self._unreported_steps, self._dropped_steps = [], 0, 0
        self._leave_for_cut()

    def _report_episodes(self, episodes: Sequence[Episode], dropped_steps: int) -> None:
        metrics = episode_metrics(episodes) if episodes else {}
        if dropped_steps:
            metrics["dropped_steps"] = dropped_steps
        self.ctx.histograms({"return": [episode.total for episode in episodes]})
        self.ctx.metrics(metrics)

    def _leave_for_cut(self) -> None:
        """Let the episodes that are in no report yet be reported where the run is cut, if it is cut before the next."""
        episodes, count, dropped = self._episodes, len(self._episodes), self._dropped_steps
        is_any = bool(count or dropped)
        # The list only grows until it is replaced by a new one.
        self.ctx.report_at_cut(
            (lambda: self._report_episodes(episodes[:count], dropped)) if is_any else None
        )

    def state_dict(self) -> dict[str, Any]:
        """The state that the next token depends on, without the weights and the envs."""
        return {
            "envstep": self.envstep,
            "origin": None if self._origin is None else self._origin.state_dict(),
            "actor": self._actor.state_dict(),
            "mode": act_mode_state(self.mode),
            "episodes": [tuple(episode) for episode in self._episodes],
            "unreported": [self._unreported_steps, self._dropped_steps],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with the policy that acts now."""
        self.envstep = int(state["envstep"])
        self._actor.load_state_dict(state["actor"])
        if self._origin is not None:
            self._origin.load_state_dict(state["origin"])
        load_act_mode_state(self.mode, state["mode"])
        self._episodes = [Episode(*episode) for episode in state["episodes"]]
        self._unreported_steps, self._dropped_steps = state["unreported"]
        self._leave_for_cut()


def requested_count(name: str, value: int | None, default: int) -> int:
    """Check a number that was given by hand; None stands for the default."""
    if value is None:
        return default
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a positive whole number")
    return int(value)
