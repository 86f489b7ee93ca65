"""Refuses an algorithm whose actions, models or settings do not fit together, when the policy is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.facts import UnsoundError
from flowrl.nodes.distributions import COUNT_FROM_0, action_bounds, choice_counts
from flowrl.nodes.ignored_settings import check_models

if TYPE_CHECKING:
    from flowrl.nodes.algorithm import Algorithm, Net

LIKELIHOODS = ("logp", "behaviour")  # columns that say how likely actions were


def check_actions(algorithm: Algorithm) -> None:
    """Refuse an env whose actions it cannot choose."""
    action = algorithm.own_action
    is_real, others = np.dtype(action.dtype).kind == "f", algorithm.other_algorithms
    if action.shape and not is_real:
        others = algorithm.for_several_choices
    hint = f"try {others}" if others else ""
    if not is_real and choice_counts(action) is None:
        hint = COUNT_FROM_0  # no algorithm can choose
    if algorithm.actions == "discrete" and (action.n is None or action.shape):
        raise UnsoundError(
            f"{algorithm.name} chooses one of n actions; the env takes {action}", hint, "policy"
        )
    if algorithm.actions == "real" and not is_real:
        raise UnsoundError(
            f"{algorithm.name} needs real-valued actions; the env takes {action}", hint, "policy"
        )
    if algorithm.scales_actions:
        _check_bounds(algorithm, *action_bounds(action))


def _check_bounds(algorithm: Algorithm, low: Array, high: Array) -> None:
    what = f"{algorithm.name} scales its actions to their bounds; "
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        what += f"the env takes {algorithm.own_action}, without bounds"
        raise UnsoundError(what, "wrap the env, so that its actions are bounded", "policy")
    if (low == high).any():
        number = int(np.argmax(low == high))
        what += f"component {number} of the env's actions is always {low[number]:g}"
        raise UnsoundError(what, "wrap the env, so that it adds what cannot be chosen", "policy")


def check_exploring(algorithm: Algorithm) -> None:
    """Refuse exploring steps where the likelihood of actions is learned from: it would be that of other actions."""
    if algorithm.explore and set(LIKELIHOODS) & set(algorithm.collect_columns()):
        what = f"{algorithm.name} learns from the likelihood of its actions, which exploring steps replace"
        hint = "leave out `explore`; it explores by drawing its actions"
        raise UnsoundError(what, hint, "policy.explore")


def check_effects(algorithm: Algorithm, declared: Mapping[str, Net]) -> None:
    """Refuse settings without an effect, unless they have their defaults."""
    ignored = dict(algorithm.ignored_settings())
    if not algorithm.learns_from_rewards():
        ignored["gamma"] = f"{algorithm.name} learns from no rewards"
    for name, why in ignored.items():
        if getattr(algorithm.config, name) != type(algorithm.config).model_fields[name].default:
            what = f"`{name}` has no effect: {why}"
            raise UnsoundError(what, "leave it out", f"policy.{name}")
    check_models(algorithm.config, declared, "policy.")


def check_memory(algorithm: Algorithm) -> None:
    """Refuse recurrent models where it learns from single steps, and unrolls where nothing remembers."""
    steps, rule = algorithm.learned_unroll_steps, algorithm.unrolls
    for name, net in algorithm.nets.items():
        remembers = bool(net.model.memory_columns())
        if remembers and (rule == "never" or name != algorithm.acting_network):
            what = f"{algorithm.name} learns from single steps, and the model is recurrent"
            if rule != "never":
                only = f"only the network '{algorithm.acting_network}' of {algorithm.name}"
                what = f"{only} can be recurrent, not '{name}'"
            hint = "take an mlp, or the policy r2d2, or ppo with `unroll_steps`"
            raise UnsoundError(what, hint, "model")
        if rule == "possible" and remembers and steps is None:
            what = "a recurrent model must learn from unrolls"
            raise UnsoundError(what, "give the policy `unroll_steps: 16`", "unroll_steps")
        acts = name == algorithm.acting_network
        if rule == "recurrent" and acts and remembers != (steps is not None):
            what = "a recurrent model must learn from unrolls, and any other model from steps"
            hint = "give the policy `unroll_steps: 16` and the model `type: gru`, or neither"
            raise UnsoundError(what, hint, "unroll_steps")
