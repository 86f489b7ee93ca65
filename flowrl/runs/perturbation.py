"""How the settings of a population's members are changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowrl.core.errors import UsageError, spelling_hint
from flowrl.graph.model import Graph
from flowrl.graph.settings import Setting, graph_settings


@dataclass(frozen=True, slots=True)
class Perturbation:
    """How a setting is changed: multiplied or divided by a factor, or to one of some values."""

    key: str
    factor: float | None = None
    choices: tuple[str, ...] = ()

    def candidates(self, value: Setting, rng: np.random.Generator) -> list[Setting]:
        """The new value that was drawn; with a factor, that of the other direction follows."""
        if self.factor is None:
            return [self.choices[int(rng.integers(len(self.choices)))]]
        assert isinstance(value, int | float)
        both = [value * self.factor, value / self.factor]
        scaled = both if rng.integers(2) else both[::-1]
        return [max(1, round(x)) if isinstance(value, int) else float(x) for x in scaled]


def read_perturbation(text: str) -> Perturbation:
    """Read KEY, KEY=FACTOR or KEY=A,B,… as `--perturb` takes them."""
    key, equals, value = text.partition("=")
    if not key or (equals and not value):
        raise UsageError(f"--perturb {text}: expected KEY, KEY=FACTOR or KEY=A,B,…")
    if "," in value:
        choices = tuple(value.split(","))
        if "" in choices or len(set(choices)) < len(choices):
            raise UsageError(f"--perturb {text}: expected different values between the commas")
        return Perturbation(key, choices=choices)
    try:
        factor = float(value or 1.2)
    except ValueError:
        factor = 0.0
    if not 1 < factor < 1000:
        raise UsageError(
            f"--perturb {text}: the factor is '{value}'; expected a number above 1, such as 1.2, or values with commas"
        )
    return Perturbation(key, factor)


def first_values(graph: Graph, perturbations: Sequence[Perturbation]) -> dict[str, Setting]:
    """The written values of the settings that are to be changed."""
    if not perturbations:
        raise UsageError("population: no setting is changed; name one, such as --perturb policy.lr")
    known, found = graph_settings(graph), dict[str, Setting]()
    for one in perturbations:
        if one.key in found:
            raise UsageError(f"--perturb {one.key}: it is given twice; leave one of them out")
        if one.key not in known:
            raise UsageError(
                f"--perturb {one.key}: the graph has no such setting; {spelling_hint(one.key, known)}"
            )
        value = known[one.key]
        if one.factor is not None and (isinstance(value, bool | str) or value == 0):
            raise UsageError(
                f"--perturb {one.key}: its value is {value!r}, which no factor changes; give values with commas, such "
                f"as {one.key}=A,B"
            )
        found[one.key] = value
    return found
