"""What a manager with workers knows of each env, from one reset of all envs to the next."""

from __future__ import annotations

from flowrl.core.batch import Array
from flowrl.nodes.env_managers.action_log import ActionLog
from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics


class EnvStates:
    """The state of each env, which tracker, recovery and assembler share.

    An env plays in one of the shared rows. With `pre_reset` it has a second one, the spare, in which its next episode
    is begun while the current one is played. At the end of the episode the two rows change places.
    """

    def __init__(self, statistics: EpisodeStatistics, row: Array) -> None:
        count = len(row)
        self.statistics = statistics
        self.log = ActionLog(count)
        self.row = row  # in which each env plays
        self.obs_row = row.copy()  # that holds its next observation: at an end, the spare's
        self.carried = [""] * count  # what each carried over when it last began afresh
        self.sent: dict[int, None] = {}  # envs whose steps were sent and not received
        self.is_resetting = [True] * count  # whether its command is a reset rather than a step
        self.failed_while_idle: set[int] = set()  # envs that failed while no step was pending

    def index_of(self, row: int) -> int:
        """The env that a row belongs to."""
        return row % len(self.row)

    def other_row(self, row: int) -> int:
        """The env's other row. Spare rows are numbered after the first rows of all envs."""
        count = len(self.row)
        return row - count if row >= count else row + count
