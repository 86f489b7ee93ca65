"""What a node type states about a node before it is made: its facts, from what is known of its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flowrl.core.batch import Schema


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The facts about a node's neighbours that are known before the run; an argument of `describe`."""

    # The columns of each connected stream input; None where tokens are not tables.
    inputs: Mapping[str, Schema | None]
    # For each link, `Facts.service` of the linked node, or a list of them where the link takes several.
    links: Mapping[str, Any]
    connected_outputs: frozenset[str]
    # The roles of the nodes that are linked to this one.
    client_roles: frozenset[str] = frozenset()
    # The stream inputs whose tokens come from envs, directly or through other nodes, so that they never end.
    live_inputs: frozenset[str] = frozenset()
    # Whether the node may take its time to look for what its `Facts.notes` say, for `flowrl check`.
    wants_notes: bool = False
    # The replicas of the node's group, among which the rows of each token are split; 1: there is no group.
    group_size: int = 1
    # The number of rows in a token of each stream input, where it is known.
    rows: Mapping[str, int] = field(default_factory=dict)
    # Whether the node is to run on this machine. If not, it runs on a host, or the graph is read to act with what a
    # run of it has learned.
    runs_here: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node type states about a node before it is made. `check` reasons with these facts."""

    # The columns of each stream output; None where tokens are not tables.
    outs: Mapping[str, Schema | None] = field(default_factory=dict)
    # The number of rows in a token of each stream output.
    rows: Mapping[str, int] = field(default_factory=dict)
    # The columns that each stream input must have.
    needs: Mapping[str, Schema] = field(default_factory=dict)
    # By the name of a needed column: how to mend it if it is missing. `{source}` stands for the node that gives others.
    column_hints: Mapping[str, str] = field(default_factory=dict)
    # By stream output: the columns that the node exists to change, such as the reward of a reward model.
    changes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Whether each row of a stream output is followed by the next step of its env, except where `last` is set. Outputs
    # that are not named keep the order of the node's first stream input.
    ordered: Mapping[str, bool] = field(default_factory=dict)
    # The stream inputs whose rows must be ordered.
    needs_order: frozenset[str] = frozenset()
    # By such an input: how to mend it if rows arrive in another order. `{source}` stands for the node that gives them.
    # For inputs that are not named, a general hint is given.
    order_hints: Mapping[str, str] = field(default_factory=dict)
    # The stream outputs whose tokens may end within an episode. Others do so if those of the first stream input do.
    cuts_episodes: frozenset[str] = frozenset()
    # The stream inputs whose tokens must be whole episodes.
    needs_episodes: frozenset[str] = frozenset()
    # By such an input: how to mend it if tokens end within episodes. `{source}` stands for the node that gives them.
    episode_hints: Mapping[str, str] = field(default_factory=dict)
    # The rows that must have arrived at an input before the first output is due, and the parameter that sets this.
    needs_rows: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    # The rows that each token of an input must have, and the parameter that sets this.
    needs_rows_each: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    # By stream port whose rows are sequences of steps: the settings, by name, that both ends of a stream must share.
    # Where a setting is a list, the producer's may have more entries than the consumer's.
    sequences: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # By state port: the columns of the observations and actions that its weights are for. A state that carries the
    # weights of several learners has entries `PORT/NAME` for those of one name, and `PORT/*` for those of all others.
    acts_on: Mapping[str, Schema] = field(default_factory=dict)
    # By the same keys: the network whose weights they are.
    networks: Mapping[str, NetworkFacts] = field(default_factory=dict)
    # By parameter that is a policy with which the node acts, as a path such as `policies.NAME`: a hash of all that
    # acting depends on beside the weights, or nothing if it is not known. If it is, and no fact of the node changes
    # with a setting of the policy, then that setting has no effect on the node.
    acting: Mapping[str, str] = field(default_factory=dict)
    # By state output that carries the weights of several learners: for each name, the state input that brings them.
    carries: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # By state input that carries the weights of several learners: for which of their names the node itself acts.
    own_names: Mapping[str, OwnName] = field(default_factory=dict)
    # By stream input that takes the results of who acts for one of these names: the name.
    results_of: Mapping[str, str] = field(default_factory=dict)
    # The env steps of one firing, where that number is fixed.
    env_steps: int | None = None
    # What the node will allocate for data.
    memory_bytes: int = 0
    # The data that a snapshot of the node has at most.
    state_bytes: int = 0
    # Of these, what it gives as a `LiveArray`, of which a snapshot copies what is new.
    live_state_bytes: int = 0
    # True for a learner that must not learn from data of older weights.
    on_policy: bool = False
    # Why a learner cannot learn from data of older weights at all; empty if it can.
    needs_newest_weights: str = ""
    # The stream outputs whose tokens repeat rows of earlier rounds, which older weights made.
    replays: frozenset[str] = frozenset()
    # True if every number of its outputs is one of its inputs, or is checked by the node itself. Then the engine does
    # not check whether they are finite.
    checks_numbers: bool = False
    # Why two runs may differ; empty if they do not.
    nondeterministic: str = ""
    # Lines that `flowrl check` prints about the node; they are asked for by `Surroundings.wants_notes`.
    notes: tuple[str, ...] = ()
    # Parameters that leave a choice to this machine (such as `auto`), and what was chosen. A run has these values.
    resolved: Mapping[str, Any] = field(default_factory=dict)
    # The names of the settings with which versions of each state output come (`State.command`), where they are known.
    settings: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # The settings with which each state input must come, each with the parameter that depends on it. Inputs that carry
    # the weights of several are named as in `acts_on`.
    needs_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Passed to the `describe` of clients that link to this node.
    service: Any = None
    # Modules that making or firing the node imports. A process of several sites imports them once.
    imports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnName:
    """For whom a node acts with weights of its own, among those whose weights a state carries by names."""

    name: str | None  # None: the state has to carry one name
    key: str  # the parameter that gives it
    weights: str  # the state input of its own weights


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """The network whose weights a state port gives or takes. Both ends of the state must have the same."""

    settings: Mapping[str, Any]  # what weights, and what they mean, depend on; empty: not known
    key: str = "policy"  # the parameter that gives the network, as a path such as `policies.NAME`


class UnsoundError(ValueError):
    """Raised by `describe`: this node cannot work with these parameters and neighbours.

    Also raised by validators of a `Config`: these parameters do not fit together. `key` is the parameter that is wrong,
    as a path such as `env.id`, where a graph file is reported.
    """

    needs_traceback = False

    def __init__(self, what: str, hint: str = "", key: str = "") -> None:
        self.what, self.hint, self.key = what, hint, key
        super().__init__(f"{what}; {hint}" if hint else what)


class MissingPackageError(UnsoundError):
    """Raised by `describe`: a package that the node needs is not installed.

    A run is refused. Commands that only show a graph, such as `draw`, continue without the node's facts.
    """
