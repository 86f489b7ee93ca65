"""An opponent that follows a rule."""

from typing import Any

import numpy as np

from flowrl.nodes.policy import Policy


class Undercutter(Policy):
    """Names one less than what the other side has named last, and 5 at first."""

    acts_without_weights = True

    def collect_mode(self, seed: int) -> Any:
        """The mode that acts."""
        return UndercutterMode()

    eval_mode = collect_mode


class UndercutterMode:
    """Acts on observations of `Undercut`."""

    def load(self, state: Any) -> None:
        """There are no weights to load."""

    def forward(self, obs: Any) -> dict[str, Any]:
        """Map observations (B, 3) to actions (B,)."""
        other = np.round(obs[:, 2] * 5).astype(np.int64)
        return {"action": np.where(other == 0, 4, np.maximum(other - 2, 0))}
