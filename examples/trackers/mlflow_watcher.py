"""Log a run to MLflow: settings, metrics, the result and the files of the run folder.

pip install mlflow
python examples/trackers/mlflow_watcher.py [GRAPH [TRAIN_ITERS]]
"""

import sys
from pathlib import Path

import mlflow

import flowrl


class MlflowWatcher(flowrl.Watcher):
    """Metrics appear as NODE/NAME, over env steps."""

    def begin(self, run: flowrl.Run) -> None:
        """`run.settings` has every value that `--set` can change, by its key."""
        mlflow.start_run(run_name=Path(run.run_dir).name)
        mlflow.log_params({name.replace("#", "_"): v for name, v in run.settings.items()})

    def event(self, run: flowrl.Run, source: flowrl.RecordSource, record: flowrl.Record) -> None:
        """`source.total` counts the env steps that the firing knows of."""
        if isinstance(record, flowrl.MetricsRecord):
            node = source.key.replace("#", "_")  # a replica's name, and MLflow refuses its '#'
            values = {f"{node}/{name}": float(value) for name, value in record.values.items()}
            mlflow.log_metrics(values, step=source.total.env_steps)

    def end(self, run: flowrl.Run) -> None:
        """`run.ended` is the result, also of a run that failed."""
        mlflow.log_artifacts(run.run_dir)
        failed = run.ended is None or run.ended.status == "failed"
        if run.ended is not None:
            mlflow.set_tags({"status": run.ended.status, "digest": run.ended.digest})
        mlflow.end_run("FAILED" if failed else "FINISHED")


def main(graph: str = "cartpole_dqn", train_iters: str = "") -> flowrl.RunResult:
    """Run a graph, and log it to the server of MLFLOW_TRACKING_URI, or to where MLflow keeps runs by default."""
    return flowrl.load(graph).run(
        train_iters=int(train_iters) if train_iters else None, watcher=MlflowWatcher()
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
