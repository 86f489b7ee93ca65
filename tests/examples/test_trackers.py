"""The watchers for experiment trackers, with stubs in place of the trackers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import flowrl


class Recorder:
    """Notes every call of its methods, also on what they return."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]], name: str) -> None:
        self._calls, self._name = calls, name

    def __getattr__(self, name: str) -> Recorder:
        return Recorder(self._calls, f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Recorder:
        self._calls.append((self._name, args, kwargs))
        return Recorder(self._calls, f"{self._name}()")


class Tracker(ModuleType):
    """A module whose functions note how they are called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Recorder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Recorder(self.calls, name)

    def called(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


def example(tracker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Tracker, Any]:
    stub = Tracker(tracker)
    monkeypatch.setitem(sys.modules, tracker, stub)
    monkeypatch.delitem(sys.modules, f"examples.trackers.{tracker}_watcher", raising=False)
    monkeypatch.chdir(tmp_path)
    return stub, importlib.import_module(f"examples.trackers.{tracker}_watcher")


def test_weights_and_biases_has_settings_metrics_and_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wandb, module = example("wandb", monkeypatch, tmp_path)
    result = module.main("cartpole_dqn", "96")
    [(_, begun)] = wandb.called("init")
    assert begun["name"] == Path(result.run_dir).name
    assert begun["config"]["policy.lr"] == 0.002
    rows = [args[0] for args, _ in wandb.called("init().log")]
    assert rows[-1]["evaluator/return_mean"] == result.eval_return
    assert [row["env_steps"] for row in rows] == sorted(row["env_steps"] for row in rows)
    [((saved,), _)] = wandb.called("init().save")
    assert Path(saved).is_file()
    [((summary,), _)] = wandb.called("init().summary.update")
    assert summary["digest"] == result.digest
    assert wandb.called("init().finish") == [((), {"exit_code": 0})]


def test_mlflow_has_settings_metrics_and_the_run_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mlflow, module = example("mlflow", monkeypatch, tmp_path)
    result = module.main("cartpole_dqn", "96")
    [((params,), _)] = mlflow.called("log_params")
    assert params["policy.lr"] == 0.002
    reports = {name: at for args, at in mlflow.called("log_metrics") for name in args[0]}
    assert reports["evaluator/return_mean"] == {"step": result.env_steps}
    assert mlflow.called("log_artifacts") == [((result.run_dir,), {})]
    assert mlflow.called("end_run") == [(("FINISHED",), {})]


@pytest.mark.parametrize(
    ("tracker", "end", "expected"),
    [
        ("wandb", "init().finish", ((), {"exit_code": 1})),
        ("mlflow", "end_run", (("FAILED",), {})),
    ],
)
def test_a_run_that_fails_is_marked(
    tracker: str, end: str, expected: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stub, module = example(tracker, monkeypatch, tmp_path)
    (tmp_path / "broken.py").write_text(
        "import flowrl\n\n@flowrl.as_node\ndef fail(data: flowrl.Batch) -> flowrl.Batch:\n"
        "    raise ValueError('broken')\n"
    )
    graph = tmp_path / "broken.yaml"
    graph.write_text(
        "extends: cartpole_dqn\nnodes: {fail: {type: 'broken:fail'}}\n"
        "edges: [collector -> fail -> buffer]\n"
    )
    with pytest.raises(flowrl.NodeError):
        module.main(str(graph))
    assert stub.called(end) == [expected]
