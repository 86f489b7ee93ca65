"""The traffic lights of a crossing in Cologne, simulated by SUMO (RESCO, Ault & Sharon 2021)."""

from pathlib import Path
from typing import Any

import sumo  # noqa: F401  # says where SUMO is installed, which sumo_rl asks for
import sumo_rl

NETS = Path(sumo_rl.__file__).parent / "nets" / "RESCO"
SEVEN_O_CLOCK_S = 25_200


def crossing(seconds: int = 3600, **kwargs: Any) -> Any:
    """Make an env of the morning rush hour. Every five seconds, it chooses one of four green phases.

    A reward is minus the number of cars that stand in the queues before the lights.
    """
    return sumo_rl.SumoEnvironment(
        net_file=str(NETS / "cologne1" / "cologne1.net.xml"),
        route_file=str(NETS / "cologne1" / "cologne1.rou.xml"),
        begin_time=SEVEN_O_CLOCK_S,
        num_seconds=seconds,
        single_agent=True,
        reward_fn="queue",
        sumo_warnings=False,
        add_system_info=False,
        add_per_agent_info=False,
        **kwargs,
    )
