"""Advantages on the collecting side: what a collector adds to its rows, so that each of them stands alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.core.state import State
from flowrl.nodes.devices import CPU
from flowrl.nodes.models.model import InferenceModel
from flowrl.nodes.models.numpy_model import MEMORY
from flowrl.nodes.observations import ObsColumns, leaf_columns

if TYPE_CHECKING:
    from flowrl.nodes.actor_critic import ActorCritic

ADVANTAGE, RETURN, VALUE = "advantage", "return", "value"
ESTIMATES: Schema = {name: Column("float32") for name in (ADVANTAGE, RETURN, VALUE)}

VALUE_WEIGHTS = "value network"  # what weights come with if collectors compute advantages
VALUES = "values/"  # the prefix of the value network among the weights that collectors get
# Among them: the scale of values that are normalised.
RETURN_MEAN, RETURN_STD = "return_mean", "return_std"

AdvantagePlace = Literal["learner", "collector"]


def advantages_param() -> Any:
    """Declare the setting of a policy that says where advantages and returns are computed."""
    about = "who computes advantages and returns: the learner, or collectors, whose rows then need no order"
    return param("learner", about)


def without_values(weights: Mapping[str, Array]) -> Mapping[str, Array]:
    """The weights that acting needs, without those of the value network for collectors."""
    return {name: array for name, array in weights.items() if not name.startswith(VALUES)}


def refuse_estimates(schema: Schema, who: str) -> None:
    """Refuse rows whose advantages are computed already, for a node that changes their rewards."""
    found = [name for name in (ADVANTAGE, RETURN) if name in schema]
    if found:
        what = f"{who} changes rewards, and the column '{found[0]}' of these rows is computed from them already"
        raise UnsoundError(what, "give the policy `advantages: learner`", "data")


class AdvantageEstimator:
    """Computes the advantages and returns of whole tokens, with the value network of the weights that acted.

    It does what the learner does by default, in numpy where the model acts in numpy.
    """

    def __init__(self, policy: ActorCritic) -> None:
        self.policy = policy
        self.model = self._value_model(CPU)
        self.mean, self.std = np.float32(0), np.float32(1)

    def use_device(self, device: str) -> None:
        """Compute values on another device than the CPU; weights are loaded afterwards."""
        self.model = self._value_model(device)

    def load(self, state: State) -> None:
        """Use the value network of these weights from now on."""
        found = {n.removeprefix(VALUES): a for n, a in state.arrays.items() if n.startswith(VALUES)}
        self.mean = found.pop(RETURN_MEAN, self.mean)
        self.std = found.pop(RETURN_STD, self.std)
        if self.model is not None:
            self.model.load(found)

    def estimated(self, rows: Batch) -> Batch:
        """Rows of a collector with the columns that the policy's learner needs in addition."""
        cut_t = rows["last"] | rows["terminated"] | rows["truncated"]
        v_t, v_tp1 = self._values(rows, cut_t)
        columns = (rows["reward"], rows["discount"], v_t, v_tp1, cut_t)
        found = self.policy.estimate(*(column.reshape(-1) for column in columns))
        known = dict(zip((ADVANTAGE, RETURN, VALUE), (*found, v_t.reshape(-1)), strict=True))
        shape = rows["reward"].shape
        return rows.replace(**{n: known[n].reshape(shape) for n in self.policy.estimates})

    def _value_model(self, device: str) -> InferenceModel | None:
        """The function that gives values; None for a policy that needs none."""
        if not self.policy.value_network:
            return None
        net = self.policy.nets[self.policy.value_network]
        return net.model.inference_model(net.inputs["obs"], net.heads, (VALUE,), None, device)

    def _values(self, rows: Batch, cut_t: Array) -> tuple[Array, Array]:
        """The values of all observations and next observations, shaped as the cuts, on the scale of returns."""
        if self.model is None:
            zeros = np.zeros(cut_t.shape, np.float32)
            return zeros, zeros
        obs, next_obs = (observations(rows, name, self.policy.obs) for name in ("obs", "next_obs"))
        if cut_t.ndim == 1:
            v_t = self._value(obs)
            v_tp1 = np.roll(v_t, -1)
            v_tp1[cut_t] = self._value(next_obs[cut_t])
            return v_t, v_tp1
        return self._unrolled_values(obs, next_obs, rows[MEMORY], rows["last"], cut_t)

    def _unrolled_values(
        self, obs: Array, next_obs: Array, memory: Array, last: Array, cut_t: Array
    ) -> tuple[Array, Array]:
        """The values of unrolls (N, T) of a recurrent network, whose memory (N, M) is that of their first steps."""
        v_t = np.empty(cut_t.shape, np.float32)
        v_end = np.zeros(cut_t.shape, np.float32)
        for t in range(cut_t.shape[1]):
            v_t[:, t], memory = self._step(obs[:, t], memory)
            cut = cut_t[:, t]
            v_end[cut, t], _ = self._step(next_obs[cut, t], memory[cut])
            memory = np.where(last[:, t, None], np.float32(0), memory)
        v_tp1 = np.where(cut_t, v_end, np.roll(v_t.reshape(-1), -1).reshape(v_t.shape))
        return v_t, v_tp1

    def _step(self, obs: Array, memory: Array) -> tuple[Array, Array]:
        if not len(obs):
            return np.zeros(0, np.float32), memory
        assert self.model is not None
        found = self.model(np.ascontiguousarray(obs), memory)
        return self._scaled(found[VALUE]), found[MEMORY]

    def _value(self, obs: Array) -> Array:
        if not len(obs):
            return np.zeros(0, np.float32)
        assert self.model is not None
        return self._scaled(self.model(obs)[VALUE])

    def _scaled(self, values: Array) -> Array:
        return values * self.std + self.mean


def observations(rows: Batch, name: str, obs: ObsColumns) -> Array:
    """The observations called `name` as act modes get them: nested ones as a structured array."""
    if isinstance(obs, Column):
        return rows[name]
    lead = rows["reward"].shape
    found = obs.empty(*lead)
    for leaf in leaf_columns(obs):
        found[leaf] = rows[f"{name}/{leaf}"]
    return found


def chosen_columns(reads: Iterable[str], estimates: Iterable[str]) -> tuple[str, ...]:
    """The columns that remain to be read where estimates are columns of the rows."""
    computed_from = {"next_obs", "reward", "discount", "terminated", "truncated"}
    return (*(name for name in reads if name not in computed_from), *estimates)
