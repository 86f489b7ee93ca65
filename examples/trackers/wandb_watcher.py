"""Log a run to Weights & Biases: settings, metrics, the result and the best weights.

pip install wandb
python examples/trackers/wandb_watcher.py [GRAPH [TRAIN_ITERS]]
"""

import sys
from pathlib import Path

import wandb

import flowrl


class WandbWatcher(flowrl.Watcher):
    """Metrics appear as NODE/NAME, over env steps."""

    def __init__(self, project: str) -> None:
        self._project = project

    def begin(self, run: flowrl.Run) -> None:
        """`run.settings` has every value that `--set` can change, by its key."""
        name = Path(run.run_dir).name
        self._wandb = wandb.init(project=self._project, name=name, config=run.settings)
        self._wandb.define_metric("env_steps", hidden=True)
        self._wandb.define_metric("*", step_metric="env_steps")

    def event(self, run: flowrl.Run, source: flowrl.RecordSource, record: flowrl.Record) -> None:
        """`source.total` counts the env steps that the firing knows of."""
        if isinstance(record, flowrl.MetricsRecord):
            values = {f"{source.key}/{name}": value for name, value in record.values.items()}
            self._wandb.log({"env_steps": source.total.env_steps, **values})

    def end(self, run: flowrl.Run) -> None:
        """`run.ended` is the result, also of a run that failed."""
        best = Path(run.run_dir, "checkpoints", "best.safetensors")
        if best.is_file():
            self._wandb.save(str(best), base_path=run.run_dir)
        if run.ended is not None:
            self._wandb.summary.update(run.ended.as_dict())
        self._wandb.finish(exit_code=int(run.ended is None or run.ended.status == "failed"))


def main(graph: str = "cartpole_dqn", train_iters: str = "") -> flowrl.RunResult:
    """Run a graph, and log it to the project `flowrl`."""
    return flowrl.load(graph).run(
        train_iters=int(train_iters) if train_iters else None, watcher=WandbWatcher("flowrl")
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
