"""Labels rows with what an expert does there: DAgger (Ross et al. 2011), policy distillation (Rusu et al. 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.node import Node
from flowrl.core.ports import In, Out
from flowrl.nodes.acting import SCORES
from flowrl.nodes.configured_policies import policy_for
from flowrl.nodes.observations import NestedColumns, columns_under, obs_columns_in
from flowrl.nodes.policy import Policy, act_mode_state, acting_facts, load_act_mode_state


class ExpertLabels(Node):
    """Replaces the action of each row by the one that the expert takes there; adds its `scores` if it gives them.

    A policy that imitates these rows learns what to do where it goes itself, and not only where the expert goes.
    """

    may_end_run = False
    data = In("samples")
    out = Out("samples", about="the same rows, with the expert's actions")

    class Config(BaseConfig):
        policy: Any = part(
            "policy", "the expert, which acts greedily: `{type: expert, checkpoint: …}`"
        )
        log_every_tokens: int = param(100, "tokens from one report of metrics to the next", ge=1)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        schema = surroundings.inputs["data"] or {}
        policy = expert_for(config.policy, schema)
        labels = _added_columns(policy)
        return Facts(
            outs={"out": {**schema, **labels}},
            imports=policy.imported_modules(learn=False),
            **acting_facts({"policy": policy}, explores=False, gives_rows=False),
        )

    def setup(self) -> None:
        self.tokens = 0
        schema = self.ctx.inputs.get("data")
        self._mode: Any = self._made_mode(schema) if schema else None

    def fire(self, data: Batch) -> Batch:
        """Return the rows with the expert's actions, and its scores."""
        if self._mode is None:
            self._mode = self._made_mode(data.schema)
        self.tokens += 1
        if not len(data):
            empty = _added_columns(self._policy).items()
            return data.replace(**{n: np.zeros((0, *c.shape), c.dtype) for n, c in empty})
        found = self._mode.forward(self._observations(data))
        action, scores = found["action"], {n: found[n] for n in _added_columns(self._policy)}
        if self.tokens % self.config.log_every_tokens == 0:
            same = (action == data["action"]).reshape(len(data), -1).all(1)
            self.ctx.metrics({"agreement": same.mean()})  # of the agent with the expert
        return data.replace(action=action, **scores)

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "mode": act_mode_state(self._mode)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tokens = int(state["tokens"])
        load_act_mode_state(self._mode, state["mode"])

    def _made_mode(self, schema: Schema) -> Any:
        self._policy = expert_for(self.config.policy, schema)
        return self._policy.eval_mode(self.ctx.seed_for("act"))

    def _observations(self, data: Batch) -> Array:
        obs = self._policy.obs
        if not isinstance(obs, NestedColumns):
            return data["obs"]
        found = obs.empty(len(data))
        for leaf, column in zip(obs.columns, columns_under("obs", obs), strict=True):
            found[leaf] = data[column]
        return found


def _added_columns(expert: Policy) -> Schema:
    """The columns that labelled rows have beside those that arrive."""
    return {n: c for n, c in expert.collect_columns().items() if n == SCORES}


def expert_for(policy: Any, schema: Schema) -> Policy:
    """The expert for rows with these columns; raise if it cannot label them."""
    obs, action = obs_columns_in(schema, "obs"), schema.get("action")
    if obs is None or action is None:
        missing = "obs" if obs is None else "action"
        raise UnsoundError(f"the data has no column '{missing}'", "connect a collector or a buffer")
    if "reward" in schema and schema["reward"].shape:
        raise UnsoundError("expert_labels labels single steps, and the rows are unrolls")
    found = policy_for(policy, obs, action, "policy")
    if not found.acts_without_weights:
        what = f"expert_labels needs a policy with weights of its own; {type(found).__name__.lower()} has none"
        hint = "give it `policy: {type: expert, checkpoint: FILE, trained: {…}}`"
        raise UnsoundError(what, hint, "policy")
    if found.memory_columns():
        what = "expert_labels labels each row alone, and the expert has a memory"
        raise UnsoundError(what, "take an expert without memory", "policy")
    return found
