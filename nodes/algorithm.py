"""The form of an algorithm: settings, columns that it reads, networks by name, two chains for acting, one `learn`.

A subclass of `Algorithm` is a whole algorithm in one file:

    class Td3(Algorithm):
        class Config(Algorithm.Config):      # settings; any number may be a schedule
            lr: Scheduled = scheduled(1e-3, "learning rate")

        def networks(self):                  # their models, inputs and heads
            return {"actor": Net(…), "critic": Net(…, copies=2)}

        def collect_steps(self): …           # from the acting network's heads to actions that explore
        def eval_steps(self): …              # the same, without exploration

        class Learn(NetworkLearnMode):
            def learn(self, b): …            # one train iteration on a batch

From these declarations follow the policy's columns, modes, command, weights and state, and its refusals.
`docs/algorithms.md` builds an algorithm from nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import model_validator

from flowrl.core.batch import Column, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part, parts
from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count
from flowrl.nodes.acting import (
    SCORE_HEADS,
    SCORES,
    ActingStep,
    ActionBox,
    NetworkActMode,
    keep_scores,
    obey_mask,
)
from flowrl.nodes.acting_hash import acting_hash
from flowrl.nodes.advantages import ESTIMATES
from flowrl.nodes.algorithm_checks import (
    LIKELIHOODS,
    check_actions,
    check_effects,
    check_exploring,
    check_memory,
)
from flowrl.nodes.compute import DEFAULT, Compute
from flowrl.nodes.configured_parts import configured_part, configured_parts
from flowrl.nodes.exploring import ExploringStep
from flowrl.nodes.models.action_mask import has_mask, mask_leaf
from flowrl.nodes.models.heads import Heads, acting_settings
from flowrl.nodes.models.input_columns import Inputs, input_columns
from flowrl.nodes.models.model import InferenceModel, Model, checked_model
from flowrl.nodes.observations import ObsColumns, columns_under, leaf_columns
from flowrl.nodes.policy import (
    ENV_SETTING,
    NOTHING_FOUND,
    AnyActMode,
    LearnMode,
    Policy,
    unroll_column,
)
from flowrl.nodes.schedules import (
    ResultSchedule,
    Scheduled,
    complete_schedules,
    current_value,
    scheduled_fields,
)
from flowrl.nodes.targets import Target

if TYPE_CHECKING:
    from flowrl.nodes.network_learn_mode import NetworkLearnMode

ROW_COLUMNS: Schema = {
    "reward": Column("float32"),
    "discount": Column("float32"),
    "terminated": Column("bool"),
    "truncated": Column("bool"),
    "last": Column("bool"),
    "valid": Column("bool"),
    "offset": Column("int32"),
    "is_demo": Column("bool"),
}


# How to mend it if rows lack such a column; `{source}` is the node that gives them.
COLUMN_HINTS: Mapping[str, str] = {
    "offset": "put an episode_collector in the place of {source}",
    "is_demo": "let {source} draw demonstrations, too: `demos -> {source}.demos`",
    **dict.fromkeys(
        LIKELIHOODS, "only a collector with the learner's policy gives it; demonstrations have none"
    ),
}

ACTION_KINDS = {
    "discrete": "one of n",
    "real": "real-valued, bounded",
    "any": "discrete or real-valued",
}

UnrollRule = Literal["never", "recurrent", "possible", "always"]


@dataclass(frozen=True)
class Net:
    """A network of an algorithm: its model, what it sees, and what it outputs."""

    model: Model
    inputs: Inputs  # usually {"obs": self.obs}
    heads: Heads
    copies: int | None = None  # so many networks of this form; heads are then (B, copies, …)
    target: Target | None = None  # with it, there is a target network of the name and `_target`
    masked: str = ""  # the head that obeys the action mask, if the observations have one

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its weights by name, as far as they are known without torch; empty: they are not."""
        of_one = self.model.parameter_shapes(input_columns(self.inputs), self.heads)
        if self.copies is None:
            return dict(of_one)
        return {f"copies.{k}.{n}": shape for k in range(self.copies) for n, shape in of_one.items()}

    @property
    def masks_each(self) -> bool:
        """Whether the masked head has several numbers for each action, along a last axis."""
        head = self.heads.get(self.masked)
        return head is not None and getattr(head, "each", None) is not None


MAKERS_OF_MODES = ("collect_mode", "eval_mode", "_act_mode", "network_act_mode", "inference_model")


def _knows_its_modes(cls: type[Algorithm]) -> bool:
    """Whether `acting_parts` is defined by the class that makes the modes, or by one that inherits from it."""

    def depth(name: str) -> int:
        return next(k for k, base in enumerate(cls.__mro__) if name in vars(base))

    return all(depth("acting_parts") <= depth(maker) for maker in MAKERS_OF_MODES)


class Algorithm(Policy):
    """A policy that learns by gradients. Class attributes and methods declare what it is made of."""

    # The columns that `learn` reads.
    reads: ClassVar[tuple[str, ...]] = ("obs", "next_obs", "action", "reward", "discount")
    # "discrete": one of n actions; "real": real-valued and bounded; "any": as far as `distribution_of` can.
    actions: ClassVar[Literal["discrete", "real", "any"]] = "any"
    other_algorithms: ClassVar[str] = ""  # what to take instead, for actions of another kind
    for_several_choices: ClassVar[str] = "ppo"  # what to take instead, for several choices at once
    acting_network: ClassVar[str] = "net"  # the name of the network that acts
    # Squashing algorithms choose real-valued actions in (-1, 1), which are scaled to their bounds.
    squashes: ClassVar[bool] = False
    # Whether rows are unrolls (`unroll_steps`): never, with a recurrent model only, with it and, if the graph says so,
    # with any other ("possible"), or always.
    unrolls: ClassVar[UnrollRule] = "never"
    # Whether `learn` says when batch normalisation learns the statistics of a batch (`network.batch_statistics`).
    learns_batch_statistics: ClassVar[bool] = False
    # Settings of a learner (such as `precision`, or `replicas`) with which it cannot learn, and why.
    refused_settings: ClassVar[Mapping[str, str]] = {}
    Learn: ClassVar[type[NetworkLearnMode]]

    class Config(BaseConfig):
        gamma: float = param(0.99, "discount of a reward one step later", ge=0, le=1)
        optimiser: Any = part("optimiser", "the optimiser of all networks", default="adam")
        max_grad_norm: float | None = param(
            None, "longer gradients are scaled down to this norm; null: none are", gt=0
        )
        explore: Any = parts(
            "exploring_step", "further steps of acting when collecting", only_acting=True
        )
        reset_options: dict[str, Scheduled] = param(
            {},
            "numbers or schedules that collectors' envs get by these names in `reset(options=)` of each episode",
        )

        @model_validator(mode="before")
        @classmethod
        def _complete(cls, values: Any) -> Any:
            return complete_schedules(cls, values) if isinstance(values, Mapping) else values

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        self.name = type(self).__name__.lower()
        check_actions(self)
        self.explore = self._exploring_steps()
        self._scheduled = self._scheduled_settings()
        self.setup()
        declared = self.networks()
        self.nets = {name: self._resolved(net) for name, net in declared.items()}
        check_memory(self)
        check_exploring(self)
        check_effects(self, declared)
        self.masks = mask_leaf(self.own_obs) is not None

    # What a subclass declares

    def setup(self) -> None:
        """Prepare what the other methods need, such as a distribution of actions."""

    def networks(self) -> dict[str, Net]:
        """The networks by name. The learn mode has an attribute for each."""
        raise NotImplementedError(f"{type(self).__name__} does not define networks")

    def acting_heads(self) -> tuple[str, ...]:
        """The heads that acting needs; by default all heads of the acting network."""
        return tuple(self.nets[self.acting_network].heads)

    def collect_steps(self) -> Sequence[ActingStep]:
        """The steps from the acting heads to actions that explore."""
        raise NotImplementedError(f"{type(self).__name__} does not define collect_steps")

    def eval_steps(self) -> Sequence[ActingStep]:
        """The steps from the acting heads to greedy actions."""
        raise NotImplementedError(f"{type(self).__name__} does not define eval_steps")

    def ignored_settings(self) -> Mapping[str, str]:
        """The settings that have no effect with these actions, each with the reason."""
        return {}

    def model(self, name: str = "model") -> Model:
        """The model that a parameter of the config stands for."""
        return checked_model(configured_part(self.config, name), name)

    # What follows from it

    @classmethod
    def declared_needs(cls) -> Mapping[str, str]:
        columns = {"columns": ", ".join(cls.reads)}
        return {"actions": ACTION_KINDS[cls.actions], **columns, **super().declared_needs()}

    @classmethod
    def learns_from_rewards(cls) -> bool:
        return not {"reward", "discount"}.isdisjoint(cls.reads)

    @property
    def own_obs(self) -> ObsColumns:
        """The observations of whoever acts: those of the env, or with several agents those of one agent."""
        return self.obs

    @property
    def own_action(self) -> Column:
        """The action of whoever acts: that of the env, or with several agents that of one agent."""
        return self.action

    @property
    def action_size(self) -> int:
        """The number of components of a real-valued action, or of actions to choose from."""
        return int(self.own_action.n or np.prod(self.own_action.shape, dtype=np.int64))

    @property
    def scales_actions(self) -> bool:
        """Whether actions are chosen in (-1, 1) and scaled to their bounds."""
        return self.squashes and np.dtype(self.own_action.dtype).kind == "f"

    @property
    def box(self) -> ActionBox | None:
        """The bounds to which actions are scaled, if they are."""
        return ActionBox(self.own_action) if self.scales_actions else None

    @property
    def unit_action(self) -> Column:
        """The column of actions in (-1, 1), as critics see them."""
        return Column("float32", (self.action_size,))

    def network_settings(self) -> dict[str, Any]:
        net = self.nets[self.acting_network]
        columns = leaf_columns(input_columns(net.inputs)).values()
        return {
            "model": net.model.acting_settings(),
            "inputs": [list(column.shape) for column in columns],
            "heads": {name: acting_settings(net.heads[name]) for name in self.acting_heads()},
        }

    def acting_parts(self) -> Sequence[Any]:
        """What acting depends on beside the acting network and the steps.

        A class with a mode of its own defines it. Without that, such a mode may depend on every setting.
        """
        return ()

    def acting_hash(self, explores: bool, gives_rows: bool = True) -> str:
        exploring = [step.acting_parts() for step in self.explore]
        steps = [*self.collect_steps(), *exploring] if explores else self.eval_steps()
        rows = [self.unroll_steps, self.burn_in_steps] if gives_rows else []
        collected = [self.collect_columns(), self.collect_settings()] if explores else []
        knows_all = _knows_its_modes(type(self)) and not (explores and self.estimated_columns())
        own = self.acting_parts() if knows_all else [self.config]
        spaces = [self.network_settings(), self.own_obs, self.own_action]
        return acting_hash([*spaces, *steps, *rows, *collected, *own])

    def memory_columns(self) -> Schema:
        return self.nets[self.acting_network].model.memory_columns()

    def read_columns(self) -> tuple[str, ...]:
        """The columns that `learn` reads with these settings. `obs` stands for all leaves of nested observations."""
        return self.reads

    def learn_columns(self) -> Schema:
        known = {**ROW_COLUMNS, **ESTIMATES, **self.collect_columns()}
        found: dict[str, Column] = {}
        for name in self.read_columns():
            found |= columns_under(name, self.obs) if name.endswith("obs") else {name: known[name]}
        return {
            **self.in_rows(found),
            **(self.memory_columns() if self.learns_from_unrolls else {}),
        }

    def in_rows(self, columns: Schema) -> Schema:
        """Columns of steps, as they are in the rows that are learned from."""
        steps = self.learned_unroll_steps
        return (
            columns if steps is None else {n: unroll_column(c, steps) for n, c in columns.items()}
        )

    @property
    def learns_from_unrolls(self) -> bool:
        return self.learned_unroll_steps is not None

    @property
    def least_rows(self) -> int:
        """Two, if its networks learn the statistics of a batch: one row has no deviation."""
        return 2 if self.learns_batch_statistics else 1

    def sequence_settings(self) -> dict[str, Any]:
        if self.unrolls != "always":
            return {}
        return {
            "unroll_steps": self.learned_unroll_steps,
            "burn_in_steps": self.burn_in_steps,
            "memory_columns": list(self.memory_columns()),
        }

    @property
    def learned_unroll_steps(self) -> int | None:
        """The steps in each row that is learned from, which a buffer may have joined; None: a row is one step."""
        return getattr(self.config, "unroll_steps", None)

    def command(
        self, progress: Count, found: Mapping[str, float] = NOTHING_FOUND
    ) -> dict[str, float]:
        scheduled = self._scheduled.items()
        return {name: current_value(setting, progress, found) for name, setting in scheduled}

    def needed_results(self) -> dict[str, str]:
        scheduled = self._scheduled.items()
        found = {s.by: n for n, s in scheduled if isinstance(s, ResultSchedule)}
        return {m: f"policy.{n.replace(ENV_SETTING, 'reset_options.')}" for m, n in found.items()}

    def learn_mode(self, seed: int, compute: Compute = DEFAULT) -> LearnMode:
        return self.Learn(self, seed, compute)

    def collect_mode(self, seed: int) -> AnyActMode:
        return self._act_mode(
            [*self.collect_steps(), *self.explore], self.collect_columns(), seed, True
        )

    def eval_mode(self, seed: int) -> AnyActMode:
        return self._act_mode(self.eval_steps(), {"action": self.action}, seed, False)

    @property
    def refuses_groups(self) -> str:
        """Why it cannot learn in a group of learners; empty if it can."""
        if self.learns_batch_statistics:
            return f"{self.name} normalises by statistics of batches, which the learners of a group do not share"
        return self.refused_settings.get("replicas", "")

    def score_columns(self) -> Schema:
        heads = [head for head in SCORE_HEADS if head in self.acting_heads()]
        if not heads or self.action.n is None or self.action.shape:
            return super().score_columns()
        return {SCORES: Column("float32", (self.action.n,))}

    def scoring_mode(self, seed: int) -> AnyActMode:
        columns = {"action": self.action, **self.score_columns()}
        head = next(head for head in SCORE_HEADS if head in self.acting_heads())
        return self._act_mode([*self.eval_steps(), keep_scores(head)], columns, seed, False)

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        net = self.nets[self.acting_network]
        in_torch = learn or net.model.acts_in_torch(net.inputs["obs"], net.heads)
        return ("torch",) if in_torch else ()

    def _act_mode(
        self, steps: Sequence[ActingStep], outputs: Schema, seed: int, explores: bool
    ) -> AnyActMode:
        return self.network_act_mode(steps, outputs, seed, explores)

    def network_act_mode(
        self, steps: Sequence[ActingStep], outputs: Schema, seed: int, explores: bool
    ) -> NetworkActMode:
        """The mode that acts with the acting network and these steps, and gives these columns."""
        net = self.nets[self.acting_network]
        rng = np.random.default_rng(seed)
        noise = rng if explores else None
        return NetworkActMode(
            lambda device: self.inference_model(noise, device),
            [*self._mask_steps(), *steps],
            outputs,
            memory=net.model.memory_columns(),
            rng=rng,
            action_space=self.own_action,
            to_env=self.box.to_env if self.box else None,
        )

    def inference_model(self, rng: np.random.Generator | None, device: str) -> InferenceModel:
        """What maps observations to the heads that acting needs. Noisy layers draw their noise from `rng`."""
        net, heads = self.nets[self.acting_network], self.acting_heads()
        return net.model.inference_model(net.inputs["obs"], net.heads, heads, rng, device)

    def eval_chain(self) -> list[ActingStep]:
        """All steps from the acting heads to greedy actions, the action mask included."""
        return [*self._mask_steps(), *self.eval_steps()]

    def _mask_steps(self) -> list[ActingStep]:
        """The step by which the acting network's masked head obeys the action mask, if there is one."""
        net = self.nets[self.acting_network]
        masked = self.masks and net.masked in self.acting_heads()
        return [obey_mask(net.masked, net.masks_each)] if masked else []

    def _scheduled_settings(self) -> dict[str, Any]:
        """The numbers and schedules of the algorithm and of its exploring steps, by their names in the command."""
        config = self.config
        found = {name: getattr(config, name) for name in scheduled_fields(type(config))}
        for step in self.explore:
            for name in scheduled_fields(type(step.config)):
                found[step.setting_name(name)] = getattr(step.config, name)
        return found | {f"{ENV_SETTING}{n}": s for n, s in config.reset_options.items()}

    def _exploring_steps(self) -> list[ExploringStep]:
        steps = configured_parts(self.config, "explore", ExploringStep)
        for place, step in enumerate(steps):
            step.place = place
            step.check_action(self.own_action)
        return steps

    def _resolved(self, net: Net) -> Net:
        """The network with the model for its inputs, which are checked."""
        columns = input_columns(net.inputs)
        model = net.model.for_obs(columns)
        model.check_obs(columns)
        if model.keeps_batch_statistics(columns) and not self.learns_batch_statistics:
            what = f"{self.name} does not learn the statistics of batch normalisation"
            hint = "take `norm: true` (layer norm); batch renormalisation is for the policy crossq"
            raise UnsoundError(what, hint, "model")
        if net.masked:
            has_mask(self.own_obs, getattr(net.heads[net.masked], "n", 0))
        return replace(net, model=model)
