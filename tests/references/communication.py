"""Slow, plain definitions of communication in a team (ATOC), for one team and in numpy, written from the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array

Weights = Mapping[str, Any]


def groups(
    distance: Array, wants: Sequence[bool], alive: Sequence[bool], members: int
) -> dict[int, list[int]]:
    """The group of each initiator, itself first: Jiang & Lu 2018, section 4.2."""
    everyone = range(len(alive))
    initiators = [i for i in everyone if wants[i] and alive[i]]
    selected: set[int] = set()
    found = {}
    for i in initiators:
        others = [j for j in everyone if alive[j] and j != i]
        free = [j for j in others if j not in initiators and j not in selected]
        taken = [j for j in others if j not in initiators and j in selected]
        rest = [j for j in others if j in initiators]
        preferred = [
            j
            for part in (free, taken, rest)
            for j in sorted(part, key=lambda j: (distance[i][j], j))
        ]
        if preferred:
            found[i] = [i, *preferred[: members - 1]]
            selected |= set(found[i])
    return found


def sigmoid(x: Array) -> Array:
    found: Array = 1 / (1 + np.exp(-x))
    return found


def lstm(weights: Weights, name: str, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a long short-term memory for each of some inputs (Hochreiter & Schmidhuber 1997)."""
    size = len(weights[f"{name}.weight_hh"][0])
    h = c = np.zeros(size)
    outputs = []
    for x in inputs:
        gates = weights[f"{name}.weight_ih"] @ x + weights[f"{name}.bias_ih"]
        gates = gates + weights[f"{name}.weight_hh"] @ h + weights[f"{name}.bias_hh"]
        i, f, g, o = (gates[k * size : (k + 1) * size] for k in range(4))
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return outputs


def channel(weights: Weights, thoughts: Sequence[Array]) -> list[Array]:
    """What the channel makes of the thoughts of a group, in the order of its members."""
    ahead = lstm(weights, "ahead", thoughts)
    back = lstm(weights, "back", thoughts[::-1])[::-1]
    return [np.concatenate(pair) for pair in zip(ahead, back, strict=True)]


def integrated(
    weights: Weights, thoughts: Sequence[Array], of_initiators: Mapping[int, Sequence[int]]
) -> list[Array]:
    """The thoughts of all agents after one group has communicated after another."""
    found = list(thoughts)
    for group in of_initiators.values():
        heard = channel(weights, [found[j] for j in group])
        for j, thought in zip(group, heard, strict=True):
            found[j] = thought
    return found
