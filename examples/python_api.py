"""A graph from Python: load it, change values, run it with three seeds, compare.

python examples/python_api.py [TRAIN_ITERS]
"""

import statistics
import sys

import flowrl


def main(train_iters: int | None = None) -> list[flowrl.RunResult]:
    """One run a seed; each leaves its folder in runs/."""
    graph = flowrl.load("cartpole_dqn", set={"policy.lr": 5e-4, "evaluator.weights.every": 50})
    checked = graph.check()  # sound? the same bits each time? `check` knows before anything runs
    print(f"sound: {checked.ok}, deterministic: {checked.deterministic}")
    results = [graph.run(seed=seed, train_iters=train_iters) for seed in range(3)]
    for result in results:
        print(f"seed {result.seed}: {result.status} after {result.env_steps:,} env steps")
        print(f"  return {result.eval_return}, {result.wall_s:.1f} s, in {result.run_dir}")
    print(f"median: {statistics.median(result.env_steps for result in results):,.0f} env steps")
    return results


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
