"""Measures how much longer than requested a process sleeps that does nothing else: `… SIZE`.

It prints the overruns in seconds as one line of JSON. Run once for each env and once for the policy, it has
the wake-ups of the experiment without any library, so under load it shows the delay that no collector can
avoid.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from bench.peers.sleep_experiment import SIZES
from flowrl.nodes.env_managers.workers.scheduling_hints import (
    request_precise_timers,
    request_short_slices,
)

START_DELAY_S, MEASURE_S = 0.5, 2.0  # the delay lets all processes start before any measures


def sleep_overruns_s(
    step_s: float, start_delay_s: float = START_DELAY_S, measure_s: float = MEASURE_S
) -> list[float]:
    """The overrun of each sleep."""
    rng, clock = np.random.default_rng(0), time.perf_counter
    time.sleep(start_delay_s)
    end_s, overruns_s = clock() + measure_s, []
    while (start_s := clock()) < end_s:
        requested_s = step_s * rng.uniform(0.4, 1.6)
        time.sleep(requested_s)
        overruns_s.append(clock() - start_s - requested_s)
    return overruns_s


if __name__ == "__main__":
    request_short_slices()
    request_precise_timers()
    print(json.dumps(sleep_overruns_s(SIZES[sys.argv[1]].step_s)))
