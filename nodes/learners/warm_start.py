"""Begins a learner with the state of a checkpoint: all of it, or the weights of some networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowrl.core.batch import Array
from flowrl.core.checkpoint import read_whole
from flowrl.core.errors import RunError, spelling_hint
from flowrl.core.node import UnsoundError


def read_learner_state(path: Path, node: str) -> dict[str, Any]:
    """Read the state of a learner from a checkpoint; a file that has none is an `UnsoundError`."""
    try:
        return read_whole(path, node)
    except RunError as error:
        hint = "give a checkpoint of a flowrl run, such as `runs/NAME/checkpoints/last.safetensors`"
        raise UnsoundError(str(error), hint, "begin_with") from error


def load_networks(mode: Any, state: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Load the weights of some networks, as far as they fit; return a line for each array that does not.

    Their target networks become copies of them. Everything else, optimisers included, begins anew.
    """
    from flowrl.nodes.models.networks import trainable_networks

    networks = trainable_networks(mode)
    left_out: list[str] = []
    for name in names:
        if name not in networks:
            raise UnsoundError(
                f"the policy has no network '{name}'", spelling_hint(name, networks), "only"
            )
        saved = state.get(name)
        if not isinstance(saved, Mapping) or "weights" not in saved:
            known = [n for n, s in state.items() if isinstance(s, Mapping) and "weights" in s]
            raise UnsoundError(
                f"the checkpoint has no network '{name}'", spelling_hint(name, known), "only"
            )
        left_out += _load_fitting(name, networks[name], saved["weights"])
        target = getattr(mode, f"{name}_target", None)
        if target is not None:
            target.move_towards(networks[name])
    return left_out


def _load_fitting(name: str, network: Any, saved: Mapping[str, Array]) -> list[str]:
    own = network.weights()
    left_out = [f"{name}/{n} is not in the checkpoint" for n in own if n not in saved]
    left_out += [f"{name}/{n} is not in this network" for n in saved if n not in own]
    left_out += [
        f"{name}/{n} has the shape {saved[n].shape} in the checkpoint, and {own[n].shape} here"
        for n in own
        if n in saved and saved[n].shape != own[n].shape
    ]
    fits = {n: saved[n] for n in own if n in saved and saved[n].shape == own[n].shape}
    if not fits:
        what = f"nothing of the network '{name}' fits: {'; '.join(left_out)}"
        raise UnsoundError(what, "give this policy the model that was trained", "begin_with")
    network.load_weights({**own, **fits})
    return left_out
