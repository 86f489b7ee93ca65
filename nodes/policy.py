"""The interface of a policy: an algorithm, described by a `Policy` and carried out by its modes.

A policy knows the columns of its observations and actions, never the nodes around it. Each mode is a
class of its own and builds only what it needs, so a collector's process holds no optimiser.

- The learn mode takes batches and changes the weights. The learner owns it.
- The collect mode takes observations and outputs actions that explore. The collector owns it.
- The eval mode takes observations and outputs greedy actions. The evaluator owns it.
- The command maps progress and the newest evaluation to settings such as exploration and learning rate. The
  learner computes it, and it travels with the weights, so a version acts with the settings of that version.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np

from flowrl.core.attribute_state import names_of_generators
from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import Config, Part, PartSpec
from flowrl.core.facts import NetworkFacts, UnsoundError
from flowrl.core.saved_state import UnsavableStateError
from flowrl.core.state import Count, State
from flowrl.nodes.devices import CPU
from flowrl.nodes.envs.spec import action_column_of, obs_columns_of
from flowrl.nodes.observations import (
    ObsColumns,
    columns_under,
)


@dataclass(frozen=True, slots=True)
class LearnResult:
    """The result of a train iteration: metrics (floats or 0-d tensors), and each row's priority."""

    metrics: Mapping[str, Any] = field(default_factory=dict)
    priorities: Array | None = None


class LearnMode(Protocol):
    """Owns the networks and their optimisers."""

    def forward(self, batch: Batch, command: Mapping[str, float]) -> LearnResult:
        """Do one train iteration on a batch with the policy's `learn_columns`."""

    def weights(self) -> dict[str, Array]:
        """A copy of the weights that acting needs, by name."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next iteration depends on, as arrays and numbers."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; a missing or unknown name is an error."""


class ActMode(Protocol):
    """A collect or eval mode: one action for each observation.

    A recurrent policy's act mode is a `RecurrentActMode`. A mode that draws random numbers also has
    `state_dict` and `load_state_dict` for what its actions depend on beside the weights; without, it cannot be saved.
    """

    def load(self, state: State) -> None:
        """Act with these weights, and the command that came with them, from now on."""

    def forward(self, obs: Array) -> dict[str, Array]:
        """Map observations (B, …), structured if they are nested, to columns (B, …).

        The columns are `action` and the others that `collect_columns` lists.
        """


class RecurrentActMode(Protocol):
    """An act mode with memory. Its caller keeps the memory of each env: zeros where an episode begins."""

    memory: Schema  # the memory columns of one env

    def load(self, state: State) -> None:
        """Act with these weights, and the command that came with them, from now on."""

    def forward(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        """Map observations and memory to the columns of an `ActMode` and the next step's memory."""


AnyActMode = ActMode | RecurrentActMode


NOTHING_FOUND: Mapping[str, float] = MappingProxyType({})  # before the first evaluation
ENV_SETTING = "env/"  # the prefix of settings for envs


def env_settings(command: Mapping[str, float]) -> dict[str, float]:
    """The settings for envs in a command, without their prefix."""
    found = command.items()
    return {n.removeprefix(ENV_SETTING): v for n, v in found if n.startswith(ENV_SETTING)}


class Estimator(Protocol):
    """Adds columns to the rows of whole tokens, in the order of time."""

    def use_device(self, device: str) -> None:
        """Compute on this device; weights are loaded afterwards."""

    def load(self, state: State) -> None:
        """Use these weights from now on."""

    def estimated(self, rows: Batch) -> Batch:
        """The rows with the policy's `estimated_columns`."""


class Policy(Part):
    """The description of an algorithm, made of `self.config`, `self.obs` and `self.action`."""

    kind = "policy"
    on_policy: ClassVar[bool] = False  # if true, its learner must not see data of older weights
    # If true, its learn mode reads across rows that are single steps (as for advantages), so that these must be in the
    # order of time.
    learns_across_rows: ClassVar[bool] = False
    acts_without_weights: ClassVar[bool] = False  # for example the random policy

    def __init__(
        self,
        config: Config | None = None,
        /,
        *,
        obs: ObsColumns | Any,
        action: Column | Any,
        **params: Any,
    ) -> None:
        """`obs` and `action` are columns, such as those of `envs.spec()`, or spaces of gymnasium."""
        super().__init__(config, **params)
        name = type(self).__name__
        self.obs = obs_columns_of(obs, f"{name}.obs")
        self.action = action_column_of(action, f"{name}.action")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse an old form of `command` when the class is defined, instead of in the middle of a run."""
        super().__init_subclass__(**kwargs)
        declared = [*inspect.signature(cls.command).parameters][1:]
        if declared != ["progress", "found"]:
            raise TypeError(
                f"{cls.__name__}.command takes ({', '.join(declared)}); it must take (progress, found), where `found` "
                "are the metrics of the newest evaluation"
            )

    @classmethod
    def declared_needs(cls) -> Mapping[str, str]:
        newest = ["of the newest weights"] if cls.on_policy else []
        ordered = ["in the order of time"] if cls.learns_across_rows else []
        return {"rows": ", ".join([*newest, *ordered])} if newest or ordered else {}

    @classmethod
    def learns_from_rewards(cls) -> bool:
        """Whether its learn mode reads the rewards of rows, or their discount."""
        return True

    @property
    def gamma(self) -> float:
        """The discount of summed rewards and of the column `discount`."""
        return float(getattr(self.config, "gamma", 1.0))

    @property
    def nstep(self) -> int:
        """The number of rewards that are summed in each row that it learns from; rows are collected with one."""
        return int(getattr(self.config, "nstep", 1))

    @property
    def unroll_steps(self) -> int | None:
        """The steps in each row that collectors make; None: a row is one step."""
        return getattr(self.config, "unroll_steps", None)

    @property
    def burn_in_steps(self) -> int:
        """The first steps of an unroll that repeat the previous one, to bring memory up to date."""
        return int(getattr(self.config, "burn_in_steps", 0))

    @property
    def needs_order(self) -> bool:
        """Whether the rows that it learns from must be in the order of time. An unroll is in order by itself."""
        return self.learns_across_rows and self.unroll_steps is None

    def sequence_settings(self) -> dict[str, Any]:
        """The settings that it shares with a `sequence_buffer`, by their names; empty if it learns from other rows."""
        return {}

    @property
    def least_rows(self) -> int:
        """The rows that a token must have at least, so that it can learn from them."""
        return 1

    @property
    def needs_newest_weights(self) -> str:
        """Why it cannot learn from rows of older weights than the learner's; empty if it can, well or not so well."""
        return ""

    def collect_settings(self) -> dict[str, str]:
        """What collecting needs to come with the weights, each with the parameter that depends on it."""
        return {
            name: f"policy.{name.replace(ENV_SETTING, 'reset_options.')}"
            for name in self.command(Count())
        }

    def estimated_columns(self) -> Schema:
        """The columns that collectors add to the rows of a whole token, such as advantages; empty: none."""
        return {}

    def estimator(self) -> Estimator | None:
        """What computes these columns in a collector."""
        return None

    def weights_columns(self) -> Schema:
        """The columns of the observations and actions that its weights are for; empty if it acts without weights."""
        if self.acts_without_weights:
            return {}
        return {**columns_under("obs", self.obs), "action": self.action}

    def network_settings(self) -> dict[str, Any]:
        """What its weights, and what it does with them, depend on, as plain data; empty: not known.

        A learner and whoever acts with its weights must have equal ones.
        """
        return {}

    def acting_hash(self, explores: bool, gives_rows: bool = True) -> str:
        """A hash of all that acting depends on beside the weights; empty: not known.

        It is that of the collect mode if that `explores`, and else that of the eval mode. With `gives_rows`, it is also
        that of the rows, except for their discount.
        """
        return ""

    def memory_columns(self) -> Schema:
        """The columns of a recurrent policy's memory of one env; zeros where an episode begins."""
        return {}

    def collect_columns(self) -> Schema:
        """The columns that the collect mode outputs: `action`, and for instance `logp`."""
        return {"action": self.action}

    def score_columns(self) -> Schema:
        """The column that the scoring mode gives beside `action`: a score of each action, `scores`."""
        what = f"{type(self).__name__.lower()} does not choose one of n actions by scores"
        raise UnsoundError(what, "take a policy such as dqn or ppo, of an env with a few actions")

    def learn_columns(self) -> Schema:
        """The columns that the learn mode reads."""
        raise NotImplementedError

    def priority_column(self) -> Column:
        """The column of the priorities, if the learn mode has any: one for each row, or each step."""
        return Column("float32")

    def learn_mode(self, seed: int) -> LearnMode:
        raise NotImplementedError

    def collect_mode(self, seed: int) -> AnyActMode:
        raise NotImplementedError

    def eval_mode(self, seed: int) -> AnyActMode:
        raise NotImplementedError

    def scoring_mode(self, seed: int) -> AnyActMode:
        """The eval mode that also gives the scores by which it chooses: logits, or action values."""
        raise NotImplementedError

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        """The modules that the learn mode (or the act modes) import; a process of several sites imports them once."""
        return ()

    def command(
        self, progress: Count, found: Mapping[str, float] = NOTHING_FOUND
    ) -> dict[str, float]:
        """The settings that depend on progress (env steps, episodes, train iterations) and on results.

        `found` are the metrics of the newest evaluation; before the first one, there are none. Settings whose names
        begin with `env/` reach the envs of collectors, in `reset(options=)` of their next episodes.
        """
        return {}

    def needed_results(self) -> dict[str, str]:
        """The metrics of evaluations that the command needs, each with the parameter that depends on it."""
        return {}


def act_mode_state(mode: Any) -> dict[str, Any]:
    """The state of an act mode; empty if the mode keeps none beside its weights."""
    if hasattr(mode, "state_dict"):
        found: dict[str, Any] = mode.state_dict()
        return found
    if names := names_of_generators(mode):
        name = type(mode).__name__
        raise UnsavableStateError(
            f"{name}.{names[0]} draws random numbers, and {name} has no `state_dict` that saves where they are; "
            "define `state_dict` and `load_state_dict`"
        )
    return {}


def load_act_mode_state(mode: Any, state: Mapping[str, Any]) -> None:
    """Load a state that `act_mode_state` returned."""
    if hasattr(mode, "load_state_dict"):
        mode.load_state_dict(state)


def use_device(mode: Any, device: str) -> None:
    """Let an act mode act on a device, before it gets its weights. Modes without networks act on the CPU."""
    if device != CPU and hasattr(mode, "use_device"):
        mode.use_device(device)


def unroll_column(column: Column, steps: int) -> Column:
    """The column of unrolls of `steps` steps, with time as the first axis."""
    return replace(column, shape=(steps, *column.shape), frames=None)


def weights_facts(ports: Mapping[str, tuple[Policy, str]]) -> dict[str, Any]:
    """What a node states of the weights that its state ports give or take.

    Of each port, that is the policy that the weights are for, and the parameter that gives this policy.
    """
    return {
        "acts_on": {port: policy.weights_columns() for port, (policy, _) in ports.items()},
        "networks": {
            port: NetworkFacts(policy.network_settings(), key)
            for port, (policy, key) in ports.items()
        },
    }


def gamma_of(policy: PartSpec | Policy | None) -> float | None:
    """The gamma of the rows that a policy learns from; None if it learns from no rewards, or has no such setting."""
    if policy is None:
        return None
    cls: Any = policy.cls if isinstance(policy, PartSpec) else type(policy)
    found = getattr(policy.config, "gamma", None) if cls.learns_from_rewards() else None
    return None if found is None else float(found)


def rows_gamma(policy: Policy, learning: PartSpec | Policy | None) -> float:
    """The gamma by which a collector discounts the rows of a policy that acts.

    A policy that learns from rewards has it itself. Rows of any other are for the policy that learns from them.
    """
    own, other = gamma_of(policy), gamma_of(learning)
    return policy.gamma if own is not None or other is None else other


def acting_facts(
    policies: Mapping[str, Policy],
    explores: bool,
    gives_rows: bool | Container[str] = True,
    gamma: float | None = None,
) -> dict[str, Any]:
    """What a node states of the policies with which it acts, by the parameters that give them.

    `explores` says whether it acts like a collector, and `gives_rows` whether somebody reads its steps, or those of
    which policies. They are discounted by `gamma`, or else by that of each policy.
    """
    found = {}
    for key, policy in policies.items():
        is_read = gives_rows if isinstance(gives_rows, bool) else key in gives_rows
        known = policy.acting_hash(explores, is_read)
        discount = (policy.gamma if gamma is None else gamma) if is_read else None
        found[key] = known and f"{known} {discount}"
    return {"acting": found}


def act_by_id(mode: Any, obs: Mapping[int, Array]) -> dict[int, Any]:
    """By hand: the actions for the observations of `envs.ready_obs`, by id, as `envs.step` takes them."""
    if getattr(mode, "memory", {}):
        raise ValueError(
            f"{type(mode).__name__}.forward: the policy remembers its episode, which actions by id do not carry; "
            "take a GreedyPolicy, or a collector"
        )
    rows = np.stack(list(obs.values()))
    return dict(zip(obs, mode.forward(rows)["action"], strict=True))
