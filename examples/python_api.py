"""Use a graph in Python: load it, change values, run it with three seeds, and compare the results.

python examples/python_api.py [TRAIN_ITERS]
"""

import statistics
import sys

import flowrl


def main(train_iters: int | None = None) -> list[flowrl.RunResult]:
    """Run three seeds; each run writes its own folder in `runs/`."""
    graph = flowrl.load("cartpole_dqn", set={"policy.lr": 5e-4, "evaluator.weights.every": 50})
    checked = graph.check()  # finds problems, and whether runs are deterministic, before any run
    print(f"sound: {checked.ok}, deterministic: {checked.deterministic}")
    results = [graph.run(seed=seed, train_iters=train_iters) for seed in range(3)]
    for result in results:
        print(f"seed {result.seed}: {result.status} after {result.env_steps:,} env steps")
        print(f"  return {result.eval_return}, {result.wall_s:.1f} s, in {result.run_dir}")
    print(f"median: {statistics.median(result.env_steps for result in results):,.0f} env steps")
    return results


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
