"""What a policy is: one algorithm in one file, described by a `Policy` and worked by its modes.

A policy knows the columns of its observations and actions, never the nodes around it. Each mode is a class of
its own and builds only what it uses: a collector's process holds no optimiser.

- learn mode: a batch in, weights changed; owned by the learner.
- collect mode: observations in, actions out, exploring; owned by the collector.
- eval mode: observations in, actions out, greedy; owned by the evaluator.
- command mode: progress in, settings out (exploration, learning rate); run by the learner, and its answer
  travels with the weights, so whoever acts with a version acts with the settings of that version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import Config, Part, PartSpec
from flowrl.core.state import Count, State
from flowrl.nodes.observations import NestedColumns, ObsColumns


@dataclass(frozen=True, slots=True)
class LearnResult:
    """What one train iteration tells: metrics (floats or 0-d tensors), and a priority for each row."""

    metrics: Mapping[str, Any] = field(default_factory=dict)
    priorities: Array | None = None


class LearnMode(Protocol):
    """Owns the model and the optimiser."""

    def forward(self, batch: Batch, command: Mapping[str, float]) -> LearnResult:
        """One train iteration on a batch with the policy's `learn_columns`."""

    def weights(self) -> dict[str, Array]:
        """A copy of what acting needs, by name."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next iteration depends on, as arrays and numbers."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; a missing or unknown name is an error."""


class ActMode(Protocol):
    """Collect and eval mode: one action for each observation.

    A recurrent policy's mode is a `RecurrentActMode`. A mode that draws random numbers has
    `state_dict` and `load_state_dict`, too: what it depends on beside its weights.
    """

    def load(self, state: State) -> None:
        """Act with these weights, and the command that came with them, from now on."""

    def forward(self, obs: Array) -> dict[str, Array]:
        """Observations (B, …), structured where they are nested, to columns (B, …).

        These are `action`, and what `collect_columns` lists beside it.
        """


class RecurrentActMode(Protocol):
    """An act mode that remembers. Whoever plays keeps each env's memory: zeros where an episode begins."""

    memory: Schema  # the columns of what it remembers of one env

    def load(self, state: State) -> None:
        """As an `ActMode`."""

    def forward(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        """As an `ActMode`; the memory columns that it gives are those of the next step."""


AnyActMode = ActMode | RecurrentActMode


class Policy(Part):
    """The description of an algorithm; `self.config`, `self.obs` and `self.action` are all it knows."""

    kind = "policy"
    on_policy: ClassVar[bool] = False  # its learner must not see data of older weights
    acts_without_weights: ClassVar[bool] = False  # such as the random policy

    def __init__(
        self, config: Config | None = None, /, *, obs: ObsColumns, action: Column, **params: Any
    ) -> None:
        super().__init__(config, **params)
        self.obs, self.action = obs, action

    @property
    def gamma(self) -> float:
        """The discount of the returns that the collector works out (n-step rewards and the `discount` column)."""
        return float(getattr(self.config, "gamma", 1.0))

    @property
    def nstep(self) -> int:
        """How many rewards a row's `reward` sums."""
        return int(getattr(self.config, "nstep", 1))

    @property
    def unroll_steps(self) -> int | None:
        """How many steps a row is, for a policy that learns from unrolls; None: a row is one step."""
        return getattr(self.config, "unroll_steps", None)

    @property
    def burn_in_steps(self) -> int:
        """How many steps at an unroll's begin were the end of the one before (to bring memory up to date)."""
        return int(getattr(self.config, "burn_in_steps", 0))

    def memory_columns(self) -> Schema:
        """What acting remembers from step to step, for a recurrent policy: zeros where an episode begins."""
        return {}

    def collect_columns(self) -> Schema:
        """The columns that collect mode gives, beside the env's: `action`, and for instance `logp`."""
        return {"action": self.action}

    def learn_columns(self) -> Schema:
        """The columns that learn mode reads."""
        raise NotImplementedError

    def priority_column(self) -> Column:
        """What its learn mode gives as a row's priority, if it gives any: a number, or one a step."""
        return Column("float32")

    def learn_mode(self, seed: int) -> LearnMode:
        """The learner's side."""
        raise NotImplementedError

    def collect_mode(self, seed: int) -> AnyActMode:
        """The collector's side."""
        raise NotImplementedError

    def eval_mode(self, seed: int) -> AnyActMode:
        """The evaluator's side."""
        raise NotImplementedError

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        """The modules that learn mode imports, or the others do: loaded once, before sites are made."""
        return ()

    def command(self, progress: Count) -> dict[str, float]:
        """Command mode: the settings that depend on progress (env steps, episodes, train iterations)."""
        return {}


def unroll_column(column: Column, steps: int) -> Column:
    """The column of unrolls of such steps: their first axis is time, whatever that of a step is."""
    return replace(column, shape=(steps, *column.shape), frames=None)


def policy_for_rows(given: PartSpec | Policy, obs: ObsColumns, action: Column) -> Policy:
    """The policy that learns from rows with these columns; for some, rows are unrolls."""
    if not isinstance(given, PartSpec) or not getattr(given.config, "unroll_steps", None):
        return policy_for(given, obs, action)
    if isinstance(obs, NestedColumns):
        return policy_for(
            given, NestedColumns({n: _step(c) for n, c in obs.columns.items()}), _step(action)
        )
    return policy_for(given, _step(obs), _step(action))


def _step(unroll: Column) -> Column:
    return replace(unroll, shape=unroll.shape[1:])


def policy_for(given: PartSpec | Policy, obs: ObsColumns, action: Column) -> Policy:
    """The policy that a node was given: by the graph, still to be made; by hand, ready."""
    return given.make(obs=obs, action=action) if isinstance(given, PartSpec) else given
