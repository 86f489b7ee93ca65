"""The setting `agents: {groups: …}` of an env: which of its agents belong to which group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, field_validator, model_validator

from flowrl.core.config import Config, param
from flowrl.core.errors import shortened_repr
from flowrl.core.facts import UnsoundError

Groups = Mapping[str, Sequence[str]]  # the agents of each group, by its name

BY_SPACES: Literal["spaces"] = "spaces"


class Team(Config, title="names with settings"):
    """The agents of a group, and whether one policy observes all of them and acts for all."""

    names: list[str] = param(
        ..., "names of agents, or patterns such as `adversary_*`", min_length=1
    )
    agents: Literal["joint", "shared"] = param(
        "shared",
        "`joint`: one policy observes the group and acts for it; `shared`: each acts by itself",
    )
    reward: Literal["sum", "mean"] | None = param(
        None,
        "for `joint`: the sum of the agents' rewards (the default), or their mean over all agents",
    )
    state: bool = param(False, "for `joint`: the env's own state is observed as the leaf `state`")

    @model_validator(mode="after")
    def _check_shared(self) -> Any:
        if self.agents == "shared" and (self.state or self.reward is not None):
            word = "state" if self.state else "reward"
            raise UnsoundError(f"`{word}` of a group is for `agents: joint`", "leave it out", word)
        return self


def _read_members(group: str, given: Any) -> Any:
    """The members of a group: names, or names with settings; one error for what is neither."""
    if isinstance(given, Mapping):
        return Team.model_validate(given)
    names = isinstance(given, list) and given and all(isinstance(name, str) for name in given)
    if names or isinstance(given, Team):
        return given
    found = shortened_repr(given)
    raise ValueError(
        f"the group {group} is {found}; expected names of agents, such as [adversary_*]"
    )


class AgentGroups(Config, title="groups"):
    """The groups of an env's agents, by their names or by their spaces."""

    groups: Literal["spaces"] | dict[str, list[str] | Team] = param(
        ...,
        "names of groups, each with the names of its agents, or patterns such as `adversary_*`; `spaces`: agents with "
        "equal spaces are a group, which has the name that theirs begin with",
    )

    @field_validator("groups", mode="before")
    @classmethod
    def _check_groups(cls, groups: Any) -> Any:
        if groups == BY_SPACES:
            return groups
        if not isinstance(groups, Mapping) or not groups:
            found = shortened_repr(groups)
            raise ValueError(f"{found} names no groups; write `{{NAME: [AGENT, …]}}`, or `spaces`")
        for name in groups:
            if not str(name).isidentifier():
                raise ValueError(f"'{name}' is no name of letters, digits and _")
        return {name: _read_members(name, given) for name, given in groups.items()}


def _read_agents(given: Any) -> Any:
    """`joint`, `shared`, or groups; one error for what is neither."""
    if isinstance(given, Mapping) and {*given} == {"groups"}:
        return AgentGroups.model_validate(given)
    if isinstance(given, AgentGroups) or given in ("joint", "shared"):
        return given
    raise ValueError(f"{shortened_repr(given)} is neither joint, nor shared, nor {{groups: …}}")


# How the agents of an env act.
Agents = Annotated[Literal["joint", "shared"] | AgentGroups, BeforeValidator(_read_agents)]


def group_agents(setting: AgentGroups, env: Any) -> dict[str, list[str]]:
    """The agents of each group of an env, in the order of its `possible_agents`."""
    if setting.groups == BY_SPACES:
        return _grouped_by_spaces(env)
    found: dict[str, list[str]] = {}
    group_of: dict[str, str] = {}
    for group, given in setting.groups.items():
        names = given.names if isinstance(given, Team) else given
        for name in names:
            _require_match(group, name, env.possible_agents)
        found[group] = [a for a in env.possible_agents if any(fnmatchcase(a, n) for n in names)]
        for agent in found[group]:
            if agent in group_of:
                what = f"agent {agent} is in the groups {group_of[agent]} and {group}"
                raise UnsoundError(what, "name it in one of them", "env.agents")
            group_of[agent] = group
    if left := [agent for agent in env.possible_agents if agent not in group_of]:
        what = f"agent {left[0]} is in no group"
        hint = "add it to one, or make one for it; a group may have the policy `random`"
        raise UnsoundError(what, hint, "env.agents")
    return found


def _require_match(group: str, name: str, agents: Sequence[str]) -> None:
    if not any(fnmatchcase(agent, name) for agent in agents):
        what = f"the group {group} names {shortened_repr(name)}, and no agent of the env has such a name"
        raise UnsoundError(what, f"its agents are {', '.join(agents)}", "env.agents")


def _grouped_by_spaces(env: Any) -> dict[str, list[str]]:
    """The agents with equal spaces, under the beginning of their names that is common to them."""
    groups: list[tuple[Any, list[str]]] = []
    for agent in env.possible_agents:
        spaces = env.observation_space(agent), env.action_space(agent)
        same = next((agents for known, agents in groups if known == spaces), None)
        if same is None:
            groups.append((spaces, [agent]))
        else:
            same.append(agent)
    named = [(_common_name(agents), agents) for _, agents in groups]
    for name, agents in named:
        if not name.isidentifier() or sum(name == other for other, _ in named) > 1:
            what = f"{', '.join(agents)} have equal spaces, and their names give their group no name of its own"
            hint = "name the groups: `agents: {groups: {NAME: [AGENT, …], …}}`"
            raise UnsoundError(what, hint, "env.agents")
    return dict(named)


def _common_name(agents: Sequence[str]) -> str:
    """`listener` of `listener_0`, and `red` of `red_1` and `red_2`."""
    common = takewhile(lambda letters: len(set(letters)) == 1, zip(*agents, strict=False))
    return "".join(letters[0] for letters in common).rstrip("_0123456789")
