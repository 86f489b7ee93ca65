"""VDN (Sunehag et al. 2017): the value of what all agents do is the sum of their values."""

from __future__ import annotations

from typing import Any

from flowrl.nodes.losses import chosen
from flowrl.nodes.value_decomposition import ValueDecomposition, ValueDecompositionLearnMode


class Vdn(ValueDecomposition):
    """Learns Q_tot(o, a) = sum_i Q_i(o_i, a_i) from the reward of the team."""

    class Learn(ValueDecompositionLearnMode):
        """Sums the values of the agents that act."""

        def mix(self, q: Any, action: Any, obs: Any, target: bool) -> Any:
            return (chosen(q, action) * self.alive(obs)).sum(-1)
