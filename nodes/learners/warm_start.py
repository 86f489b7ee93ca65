"""Begins a learner with the state of a checkpoint: all of it, or the weights of some networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowrl.core.batch import Array
from flowrl.core.checkpoint import read_all_acting, read_all_wholes, read_whole
from flowrl.core.errors import RunError, spelling_hint
from flowrl.core.facts import UnsoundError
from flowrl.nodes.algorithm import Net
from flowrl.nodes.models.saved_weights import Shape
from flowrl.nodes.policy import Policy

CHECKPOINT_HINT = (
    "give a checkpoint of a flowrl run, such as `runs/NAME/checkpoints/last.safetensors`"
)
FITTING_HINT = (
    "give the policy that was trained, its model included, or the networks that fit as `only`"
)


def read_learner_state(path: Path, node: str) -> dict[str, Any]:
    """Read the state of a learner from a checkpoint; a file that has none is an `UnsoundError`."""
    try:
        return read_whole(path, node)
    except RunError as error:
        raise UnsoundError(str(error), CHECKPOINT_HINT, "begin_with") from error


def check_begin(begin_with: str | None, only: Sequence[str] | None, policy: Policy) -> None:
    """Refuse a checkpoint that does not exist or is of another policy, and `only` without one."""
    if begin_with is None:
        if only is not None:
            what = "`only` names networks of a checkpoint, and there is no `begin_with`"
            raise UnsoundError(what, "give the checkpoint's file as `begin_with`", "only")
    elif not Path(begin_with).is_file():
        what = f"there is no checkpoint '{begin_with}'"
        hint = "a run writes them to its folder `checkpoints`"
        raise UnsoundError(what, hint, "begin_with")
    else:
        _check_checkpoint(Path(begin_with), policy, only)


def _check_checkpoint(path: Path, policy: Policy, only: Sequence[str] | None) -> None:
    """Refuse a checkpoint of another policy, as far as this is known before the networks are made."""
    try:
        states = read_all_wholes(path)
    except RunError as error:
        raise UnsoundError(str(error), CHECKPOINT_HINT, "begin_with") from error
    if not states:
        what = f"'{path}' has weights to act with, and no state of a learner"
        raise UnsoundError(what, CHECKPOINT_HINT, "begin_with")
    networks = list(getattr(policy, "nets", ()))
    for name in only or ():
        if name not in networks:
            raise _unknown_network("the policy", name, networks)
    saved = {name for state in states.values() for name in _networks_in(state.get("mode", {}))}
    missing = [name for name in only or networks if name not in saved]
    if missing and only:
        raise _unknown_network("the checkpoint", missing[0], sorted(saved))
    if missing:
        what = (
            f"it has the networks {', '.join(sorted(saved)) or 'of no policy'}, and the policy has"
        )
        raise _misfit(path, f"{what} {', '.join(networks)}")
    if only:
        _check_networks([state.get("mode", {}) for state in states.values()], policy, only)
    elif "torch" not in policy.imported_modules(learn=False):  # a check loads no torch
        _check_weights(path, policy)


def _check_networks(modes: Sequence[Any], policy: Policy, names: Sequence[str]) -> None:
    """Refuse networks of which nothing fits in any learner of a checkpoint. A check loads no torch."""
    nets: Mapping[str, Net] = getattr(policy, "nets", {})
    for name in names:
        own = nets[name].parameter_shapes()
        saved = [mode[name]["weights"] for mode in modes if name in _networks_in(mode)]
        if own and saved and not any(_fitting(own, arrays) for arrays in saved):
            raise _nothing_fits(name, _left_out(name, own, saved[0]))


def _check_weights(path: Path, policy: Policy) -> None:
    """Refuse a checkpoint in which no learner has weights that fit. The node itself takes those of its name."""
    errors = []
    for state in read_all_acting(path)[0].values():
        try:
            policy.eval_mode(0).load(state)
        except ValueError as error:
            errors.append(error)
        else:
            return
    raise _misfit(path, errors[0]) from errors[0]


def _misfit(path: Path, why: object) -> UnsoundError:
    return UnsoundError(f"'{path}' does not fit the policy: {why}", FITTING_HINT, "begin_with")


def _unknown_network(owner: str, name: str, known: Sequence[str]) -> UnsoundError:
    what = f"{owner} has no network '{name}'"
    return UnsoundError(what, spelling_hint(name, known), "only")


def _networks_in(state: Mapping[str, Any]) -> list[str]:
    return [n for n, s in state.items() if isinstance(s, Mapping) and "weights" in s]


def load_networks(mode: Any, state: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Load the weights of some networks, as far as they fit; return a line for each array that does not.

    Their target networks become copies of them. Everything else, optimisers included, begins anew.
    """
    from flowrl.nodes.models.networks import trainable_networks

    networks = trainable_networks(mode)
    left_out: list[str] = []
    for name in names:
        if name not in networks:
            raise _unknown_network("the policy", name, list(networks))
        saved = state.get(name)
        if not isinstance(saved, Mapping) or "weights" not in saved:
            raise _unknown_network("the checkpoint", name, _networks_in(state))
        left_out += _load_fitting(name, networks[name], saved["weights"])
        target = getattr(mode, f"{name}_target", None)
        if target is not None:
            target.move_towards(networks[name])
    return left_out


def _load_fitting(name: str, network: Any, saved: Mapping[str, Array]) -> list[str]:
    own = network.weights()
    shapes = {n: array.shape for n, array in own.items()}
    left_out, fits = _left_out(name, shapes, saved), _fitting(shapes, saved)
    if not fits:
        raise _nothing_fits(name, left_out)
    network.load_weights({**own, **fits})
    return left_out


def _fitting(own: Mapping[str, Shape], saved: Mapping[str, Array]) -> dict[str, Array]:
    return {n: saved[n] for n in own if n in saved and saved[n].shape == own[n]}


def _left_out(name: str, own: Mapping[str, Shape], saved: Mapping[str, Array]) -> list[str]:
    """A line for each array that the network or the checkpoint lacks, or that has another shape."""
    found = [f"{name}/{n} is not in the checkpoint" for n in own if n not in saved]
    found += [f"{name}/{n} is not in this network" for n in saved if n not in own]
    found += [
        f"{name}/{n} has the shape {saved[n].shape} in the checkpoint, and {own[n]} here"
        for n in own
        if n in saved and saved[n].shape != own[n]
    ]
    return found


def _nothing_fits(name: str, left_out: Sequence[str]) -> UnsoundError:
    what = f"nothing of the network '{name}' fits: {'; '.join(left_out)}"
    return UnsoundError(what, "give this policy the model that was trained", "begin_with")
