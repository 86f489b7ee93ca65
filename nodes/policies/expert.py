"""The expert policy: what was trained before acts, with the weights of its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from flowrl.core.batch import Array, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.node import UnsoundError
from flowrl.core.state import State
from flowrl.nodes.policy import AnyActMode, LearnMode, Policy, policy_for


class Expert(Policy):
    """Acts with weights of its own; there is nothing to learn."""

    acts_without_weights = True

    class Config(BaseConfig):
        """What acts, and with what."""

        checkpoint: str = param(..., "the file, as a run keeps it", min_length=1, file=True)
        trained: Any = part("policy", "what was trained; default: the graph's", shared="policy")
        explore: bool = param(False, "as when it was trained; if not, it takes what it thinks best")

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        self.trained = policy_for(self.config.trained, self.obs, self.action)
        if not Path(self.config.checkpoint).is_file():
            what = f"there is no checkpoint '{self.config.checkpoint}'"
            raise UnsoundError(what, "runs keep them in their folder `checkpoints`", "checkpoint")

    @property
    def gamma(self) -> float:
        """As the trained policy's."""
        return self.trained.gamma

    @property
    def nstep(self) -> int:
        """As the trained policy's."""
        return self.trained.nstep

    @property
    def unroll_steps(self) -> int | None:
        """As the trained policy's."""
        return self.trained.unroll_steps

    @property
    def burn_in_steps(self) -> int:
        """As the trained policy's."""
        return self.trained.burn_in_steps

    def memory_columns(self) -> Schema:
        """As the trained policy's."""
        return self.trained.memory_columns()

    def collect_columns(self) -> Schema:
        """The action alone, unless it explores."""
        return self.trained.collect_columns() if self.config.explore else {"action": self.action}

    def learn_columns(self) -> Schema:
        """An expert is not learned."""
        self._no_learning()

    def learn_mode(self, seed: int) -> LearnMode:
        """An expert is not learned."""
        self._no_learning()

    def collect_mode(self, seed: int) -> AnyActMode:
        """Acts as it was trained."""
        return self._fixed(self.trained.collect_mode if self.config.explore else None, seed)

    def eval_mode(self, seed: int) -> AnyActMode:
        """Acts as well as it can."""
        return self._fixed(None, seed)

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        """As the trained policy's."""
        return self.trained.imported_modules(learn=False)

    def _fixed(self, make: Callable[[int], AnyActMode] | None, seed: int) -> AnyActMode:
        mode = (make or self.trained.eval_mode)(seed)
        path = Path(self.config.checkpoint)
        try:
            mode.load(read_weights(path))
        except ValueError as error:
            what = f"'{path}' is not of the policy that is described: {error}"
            hint = "describe what was trained under `trained`, its model included"
            raise UnsoundError(what, hint, "checkpoint") from error
        return FixedWeightsMode(mode)

    def _no_learning(self) -> NoReturn:
        raise UnsoundError("the expert policy does not learn", "give the learner another", "policy")


class FixedWeightsMode:
    """A mode whose weights stay what they are."""

    def __init__(self, mode: Any) -> None:
        self.mode = mode
        self.memory: Schema = getattr(mode, "memory", {})

    def load(self, state: State) -> None:
        """What others learn changes nothing."""

    def forward(self, obs: Array, *memory: Mapping[str, Array]) -> dict[str, Array]:
        """As the mode."""
        found: dict[str, Array] = self.mode.forward(obs, *memory)
        return found

    def state_dict(self) -> dict[str, Any]:
        """What the next actions depend on."""
        return self.mode.state_dict() if hasattr(self.mode, "state_dict") else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        if hasattr(self.mode, "load_state_dict"):
            self.mode.load_state_dict(state)


def read_weights(path: Path) -> State:
    """The weights of a checkpoint's first learner, and the command that came with them."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            told = json.loads(file.metadata()["flowrl"])
            names = sorted(file.keys())
            node = names[0].rpartition("/")[0]
            own = [name for name in names if name.rpartition("/")[0] == node]
            arrays = {name.rpartition("/")[2]: file.get_tensor(name) for name in own}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        what = f"'{path}' is not a checkpoint: {type(error).__name__}: {error}"
        raise UnsoundError(what, "name one that a run of flowrl kept", "checkpoint") from error
    return State(arrays, told["command"].get(node, {}))
