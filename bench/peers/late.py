"""How much longer than asked a process sleeps here and now that does nothing else: `… SIZE`.

Prints seconds, as one line of JSON. Started once for each env and once for the policy, these are the
wakings of the experiment without any library: under load they tell what no scheduling of ours can mend.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from bench.peers.sleeping import SIZES
from flowrl.nodes.env_managers.workers.scheduling_hints import (
    request_precise_timers,
    request_short_slices,
)

BEGIN_S, MEASURE_S = 0.5, 2.0  # until all have begun; then


def late_s(step_s: float, begin_s: float = BEGIN_S, measure_s: float = MEASURE_S) -> list[float]:
    """By how much each sleep was too long."""
    rng, clock = np.random.default_rng(0), time.perf_counter
    time.sleep(begin_s)
    until_s, found = clock() + measure_s, []
    while (begun_s := clock()) < until_s:
        asked_s = step_s * rng.uniform(0.4, 1.6)
        time.sleep(asked_s)
        found.append(clock() - begun_s - asked_s)
    return found


if __name__ == "__main__":
    request_short_slices()
    request_precise_timers()
    print(json.dumps(late_s(SIZES[sys.argv[1]].step_s)))
