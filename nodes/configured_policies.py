"""Makes the policies that nodes are configured with, for the columns of envs or of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flowrl.core.batch import Column, Schema
from flowrl.core.config import PartSpec
from flowrl.core.errors import shortened_repr
from flowrl.core.facts import UnsoundError
from flowrl.nodes.observations import NestedColumns, ObsColumns, obs_columns_in
from flowrl.nodes.policy import Policy


def policy_for(policy: PartSpec | Policy, obs: ObsColumns, action: Column, key: str = "") -> Policy:
    """Make the policy for these columns from a graph's spec; return a policy made by hand as it is.

    `key` is the node's parameter that is the policy. An error that names a parameter of the policy names it there.
    """
    if not isinstance(policy, PartSpec):
        return made_policy(policy)
    try:
        made: Policy = policy.make(obs=obs, action=action)
    except UnsoundError as error:
        own = ("", *policy.cls.Config.model_fields)
        below = error.key if error.key.partition(".")[0] in own else None
        if below is None and error.key.partition(".")[0] == "policy":  # the policy calls itself so
            below = error.key.partition(".")[2]
        if key and below is not None:
            error.key = f"{key}.{below}".rstrip(".")
        raise
    return made


def named_policy(
    policies: Mapping[str, Any], name: str, owner: str, obs: ObsColumns, action: Column
) -> Policy:
    """The policy of a name in the parameter `policies`. Errors say whose it is (`owner`), and name the parameter."""
    try:
        return policy_for(policies[name], obs, action)
    except UnsoundError as unsound:
        below = unsound.key.removeprefix("policy").lstrip(".")
        what, key = f"{owner} {name}: {unsound.what}", f"policies.{name}"
        raise UnsoundError(what, unsound.hint, f"{key}.{below}".rstrip(".")) from unsound


def policy_for_rows(policy: PartSpec | Policy, rows: Schema) -> Policy:
    """The policy that learns from rows with these columns. A row is a step, or an unroll of several."""
    if not isinstance(policy, PartSpec):
        return made_policy(policy)
    obs, action = obs_columns_in(rows, "obs"), rows.get("action")
    if obs is None or action is None:
        missing = "obs" if obs is None else "action"
        raise UnsoundError(f"the data has no column '{missing}'", "connect a collector or a buffer")
    if not _are_unrolls(policy, rows):
        return policy_for(policy, obs, action, "policy")
    if isinstance(obs, NestedColumns):
        step = NestedColumns({n: _step_column(c) for n, c in obs.columns.items()})
        return policy_for(policy, step, _step_column(action), "policy")
    return policy_for(policy, _step_column(obs), _step_column(action), "policy")


def _are_unrolls(policy: PartSpec, rows: Schema) -> bool:
    """Return whether rows have several steps. Rows without rewards do not show it; then the policy's rows count."""
    reward = rows.get("reward")
    if reward is not None:
        return bool(reward.shape)
    return bool(getattr(policy.config, "unroll_steps", None))


def _step_column(unroll: Column) -> Column:
    return replace(unroll, shape=unroll.shape[1:])


def made_policy(policy: Any) -> Policy:
    """A policy that was made by hand, or that of one of its modes (`policy.collect_mode`); else an error."""
    if isinstance(policy, Policy):
        return policy
    if (owner := policy_of_mode(policy)) is not None:
        return owner
    name = type(policy).__name__
    if hasattr(policy, "forward") and hasattr(policy, "load"):
        raise TypeError(
            f"policy is a {name}, which is a mode of a policy; give the policy itself, whose modes the node makes"
        )
    raise TypeError(
        f"policy is {shortened_repr(policy)}; expected a policy, such as Dqn(obs=…, action=…)"
    )


def policy_of_mode(mode: Any) -> Policy | None:
    """The policy whose method makes a mode, such as `policy.collect_mode`."""
    owner = getattr(mode, "__self__", None)
    return owner if isinstance(owner, Policy) else None
