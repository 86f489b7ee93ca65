"""sbx, which is stable-baselines3 in JAX, with the same settings, under the protocol of `bench learn`."""

from __future__ import annotations

import functools

import sbx

from bench.peers import sb3_solve
from bench.peers.solve_protocol import main

if __name__ == "__main__":
    main(functools.partial(sb3_solve.solve, library=sbx))
