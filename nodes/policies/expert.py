"""The expert policy: a trained policy that acts with the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from flowrl.core.batch import Array, Schema
from flowrl.core.checkpoint import read_all_acting
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.errors import RunError
from flowrl.core.facts import UnsoundError
from flowrl.core.state import State
from flowrl.nodes.acting_hash import acting_hash
from flowrl.nodes.configured_policies import policy_for
from flowrl.nodes.policy import (
    AnyActMode,
    LearnMode,
    Policy,
    act_mode_state,
    load_act_mode_state,
    use_device,
)


class Expert(Policy):
    """Acts with the weights of its checkpoint, and cannot learn."""

    acts_without_weights = True

    class Config(BaseConfig):
        checkpoint: str = param(..., "a checkpoint file of a run", min_length=1, file=True)
        trained: Any = part(
            "policy", "the policy that was trained; default: the graph's", shared="policy"
        )
        learner: str | None = param(
            None,
            "of a checkpoint with several policies, the learner whose it is, or the group of agents",
        )
        explore: bool = param(False, "act as in training; if not, greedily")
        scores: bool = param(
            False,
            "also give the column `scores`, for distillation: the logits of a policy, or the values of all actions",
        )

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        self.trained = policy_for(self.config.trained, self.obs, self.action, "trained")
        if not Path(self.config.checkpoint).is_file():
            what = f"there is no checkpoint '{self.config.checkpoint}'"
            hint = "a run writes them to its folder `checkpoints`"
            raise UnsoundError(what, hint, "checkpoint")
        if self.config.scores and self.config.explore:
            what = "the expert gives scores when it acts greedily, and `explore` is true"
            raise UnsoundError(what, "leave out one of both", "scores")
        self._columns = {"action": self.action}
        if self.config.scores:
            self._columns |= self.trained.score_columns()
        self._check_weights()

    @property
    def gamma(self) -> float:
        return self.trained.gamma

    @property
    def nstep(self) -> int:
        return self.trained.nstep

    @property
    def unroll_steps(self) -> int | None:
        return self.trained.unroll_steps

    @property
    def burn_in_steps(self) -> int:
        return self.trained.burn_in_steps

    def acting_hash(self, explores: bool, gives_rows: bool = True) -> str:
        known = self.trained.acting_hash(explores and self.config.explore, gives_rows)
        own = self.config.model_dump(exclude={"trained"})
        return acting_hash([known, own]) if known else ""

    def memory_columns(self) -> Schema:
        return self.trained.memory_columns()

    def collect_columns(self) -> Schema:
        return self.trained.collect_columns() if self.config.explore else self._columns

    def learn_columns(self) -> Schema:
        self._refuse_to_learn()

    def learn_mode(self, seed: int) -> LearnMode:
        self._refuse_to_learn()

    def collect_mode(self, seed: int) -> AnyActMode:
        if self.config.explore:
            return self._fixed_mode(self.trained.collect_mode(seed))
        return self.eval_mode(seed)

    def eval_mode(self, seed: int) -> AnyActMode:
        trained, scores = self.trained, self.config.scores
        return self._fixed_mode(trained.scoring_mode(seed) if scores else trained.eval_mode(seed))

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        return self.trained.imported_modules(learn=False)

    def _check_weights(self) -> None:
        """Refuse a checkpoint that does not fit, as far as this is known without torch, which a check does not load."""
        if "torch" in self.trained.imported_modules(learn=False):
            self._read_weights()
        else:
            self._fixed_mode(self.trained.eval_mode(0))

    def _read_weights(self) -> State:
        try:
            return _weights_in(Path(self.config.checkpoint), self.config.learner)
        except RunError as error:
            raise UnsoundError(
                str(error), "give a checkpoint of a flowrl run", "checkpoint"
            ) from error

    def _fixed_mode(self, mode: AnyActMode) -> AnyActMode:
        path, state = Path(self.config.checkpoint), self._read_weights()
        try:
            mode.load(state)
        except ValueError as error:
            what = f"'{path}' does not fit the policy: {error}"
            hint = "give the policy that was trained, its model included, as `trained`"
            raise UnsoundError(what, hint, "checkpoint") from error
        return FixedWeightsMode(mode, state)

    def _refuse_to_learn(self) -> NoReturn:
        raise UnsoundError("the expert policy does not learn", "give the learner another", "policy")


def _weights_in(path: Path, learner: str | None) -> State:
    """The weights in a checkpoint that are those of a learner, or of a group; without a name, the only ones."""
    states, _ = read_all_acting(path)
    owners = {key: _owners(key) for key in sorted(states)}
    named = dict.fromkeys(names[-1] for names in owners.values())
    wanted = next(iter(named)) if learner is None and len(named) == 1 else learner
    found = [key for key, names in owners.items() if wanted in names]
    if found:
        return states[found[0]]
    known = ", ".join(named)
    what = f"'{path}' has the policies of {known}"
    raise UnsoundError(
        what, f"give the name of one: `learner: {known.partition(',')[0]}`", "learner"
    )


def _owners(key: str) -> list[str]:
    """The names by which the weights under a key are known: `learner` for `learner.weights`, `wolves` for the input
    `evaluator.wolves_weights`.
    """
    node, _, port = key.partition(".")
    group = port.removesuffix("_weights") if port.endswith("_weights") else ""
    return [node, group] if group else [node]


class FixedWeightsMode:
    """An act mode that ignores new weights."""

    def __init__(self, mode: Any, state: State) -> None:
        self.mode, self._state = mode, state
        self.memory: Schema = getattr(mode, "memory", {})

    def use_device(self, device: str) -> None:
        use_device(self.mode, device)
        self.mode.load(self._state)

    def load(self, state: State) -> None:
        """Keep the weights of the checkpoint."""

    def forward(
        self, obs: Array | dict[int, Array], *memory: Mapping[str, Array]
    ) -> dict[Any, Array]:
        columns: dict[Any, Array] = self.mode.forward(obs, *memory)
        return columns

    def state_dict(self) -> dict[str, Any]:
        return act_mode_state(self.mode)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_act_mode_state(self.mode, state)
