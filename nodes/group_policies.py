"""The policies of groups of agents: one for each group, with the states that bring their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrl.core.config import PartSpec
from flowrl.core.context import Context
from flowrl.core.facts import UnsoundError
from flowrl.core.ports import StateIn
from flowrl.core.state import State
from flowrl.nodes.configured_policies import made_policy, named_policy
from flowrl.nodes.devices import available_device, shared_device_facts
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.models.saved_weights import check_no_nan
from flowrl.nodes.policy import (
    Policy,
    act_mode_state,
    acting_facts,
    load_act_mode_state,
    use_device,
    weights_facts,
)

WEIGHTS = "_weights"  # the end of the name of the state that brings a group's weights


def acts_without_weights(policy: Any) -> bool:
    """Whether the policy of a group, as it is configured, needs no weights."""
    cls: Any = policy.cls if isinstance(policy, PartSpec) else type(made_policy(policy))
    return bool(cls.acts_without_weights)


def weights_ports(policies: Mapping[str, Any]) -> dict[str, StateIn]:
    """The states of all groups whose policies need weights."""
    return {
        name + WEIGHTS: StateIn("weights", about=f"of the policy of the group {name}")
        for name, policy in policies.items()
        if not acts_without_weights(policy)
    }


def weights_by_group(policies: Mapping[str, Any], states: Sequence[State]) -> dict[str, State]:
    """The weights that a node with `weights_ports` is fired with, by group."""
    names = [name for name, policy in policies.items() if not acts_without_weights(policy)]
    return dict(zip(names, states, strict=True))


def group_policies(config: Any, spec: EnvSpec) -> dict[str, Policy]:
    """The policy of each group of these envs. A group without one, and a policy without a group, are refused."""
    if not spec.groups:
        what = "the agents of the env are in no groups, and `policies` are those of groups"
        hint = "write `env: {agents: {groups: …}, …}`, or take a node with one `policy`"
        raise UnsoundError(what, hint, "policies")
    for name in spec.groups:
        if name not in config.policies:
            what = f"the env has the groups {', '.join(spec.groups)}, and there is no policy for {name}"
            raise UnsoundError(what, f"add `{name}` to `policies`, such as `random`", "policies")
    for name in config.policies:
        if name not in spec.groups:
            what = (
                f"there is a policy for {name}, and the env has the groups {', '.join(spec.groups)}"
            )
            raise UnsoundError(what, "give each group a policy, by its name", "policies")
    return {name: _policy_of(config, spec, name) for name in spec.groups}


def _policy_of(config: Any, spec: EnvSpec, group: str) -> Policy:
    rows = spec.groups[group]
    policy = named_policy(config.policies, group, "the group", rows.obs, rows.action)
    if getattr(policy.config, "reset_options", None):
        what = f"the policy of {group} sets options of `reset`, which are those of the envs of all groups"
        raise UnsoundError(what, "leave `reset_options` out", f"policies.{group}")
    return policy


class GroupModes:
    """The eval modes of all groups, by their names."""

    def __init__(self, policies: Mapping[str, Policy], config: Any, context: Context) -> None:
        self.by_group: dict[str, Any] = {}
        for name, policy in policies.items():
            self.by_group[name] = policy.eval_mode(context.seed_for(f"act/{name}"))
            use_device(self.by_group[name], available_device(config.device))

    def load(self, weights: Mapping[str, State]) -> None:
        """Let groups act with these weights."""
        for name, state in weights.items():
            check_no_nan(state.arrays)
            self.by_group[name].load(state)

    def state_dict(self) -> dict[str, Any]:
        """What the next actions depend on beside the weights."""
        return {name: act_mode_state(mode) for name, mode in self.by_group.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, mode in self.by_group.items():
            load_act_mode_state(mode, state[name])


def group_facts(
    config: Any, policies: Mapping[str, Policy], runs_here: bool, explores: bool
) -> dict[str, Any]:
    """What a node states of its policies: what their weights are for, the device, and the modules that it imports.

    `explores` says whether it acts like a collector.
    """
    taken = {
        name + WEIGHTS: (policy, f"policies.{name}")
        for name, policy in policies.items()
        if not policy.acts_without_weights
    }
    device = shared_device_facts(config, policies.values(), False, runs_here)
    acting = {f"policies.{name}": policy for name, policy in policies.items()}
    return {**device, **weights_facts(taken), **acting_facts(acting, explores, gives_rows=explores)}
