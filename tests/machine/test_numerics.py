"""Every site computes with the same numerical settings, whatever the calling program has set."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from flowrl.machine.numerics import reset_numerics
from tests.sites.perturbed_environment import flush_to_zero, perturbed_environment
from tests.sites.run_comparison import run_graph
from tests.toys.toy_runs import toy_graph

USUAL = '"threads": 1.0, "bytes": 4.0, "learns": 1.0, "exact": 1.0, "fast": 1.0, "tiny": 1.0'
GRAPH = toy_graph(
    {"c": "Source", "n": "tests.sites.site_nodes:NumericsReporter", "l": "Learner"}, ["c -> n, l"]
)


def change_settings() -> None:
    """Change numerical settings, as some libraries do."""
    torch.set_num_threads(3)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    torch.set_grad_enabled(False)
    torch.backends.mkldnn.enabled = False
    flush_to_zero()


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["serial", "threads", "n=process"])
def test_a_node_computes_with_default_settings(
    placement: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in perturbed_environment().items():
        monkeypatch.setenv(name, value)
    change_settings()
    assert np.float32(1e-39) * np.float32(0.5) == 0
    try:
        facts = run_graph(GRAPH, placement, tmp_path / "r", rounds=2)
    finally:
        reset_numerics(1)
    rows = [line for line in facts["metrics.jsonl"] if '"node": "n"' in line]
    assert len(rows) == 2
    assert all(USUAL in row for row in rows)


def test_a_reset_waits_while_another_thread_imports_torch(tmp_path: Path) -> None:
    """A module that is being imported is in `sys.modules` before it is complete."""
    (tmp_path / "torch.py").write_text(
        "import gate\ngate.loading.set()\nassert gate.goes_on.wait(60)\nis_complete = True\n"
    )
    (tmp_path / "gate.py").write_text(
        "import threading\nloading, goes_on = threading.Event(), threading.Event()\n"
    )
    code = (
        "import gate, importlib, threading\nfrom flowrl.machine import numerics, torch_settings\n"
        "seen = []\n"
        "torch_settings.process_settings = lambda torch, n: seen.append((torch.is_complete, n)) or []\n"
        "torch_settings.thread_settings = lambda torch: []\n"
        "first = threading.Thread(target=importlib.import_module, args=('torch',))\n"
        "first.start()\ngate.loading.wait(60)\n"
        "second = threading.Thread(target=numerics.reset_numerics, args=(2,))\nsecond.start()\n"
        "second.join(0.2)\nassert second.is_alive() and not seen\n"
        "gate.goes_on.set()\nsecond.join(60)\nprint(seen)\n"
    )
    paths = os.pathsep.join([str(tmp_path), os.getcwd()])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "[(True, 2)]\n", done.stderr


def test_a_reset_restores_denormal_numbers() -> None:
    found = []

    def work() -> None:
        flush_to_zero()
        found.append(np.float32(1e-39) * np.float32(0.5) == 0)
        reset_numerics(1)
        found.append(np.float32(1e-39) * np.float32(0.5) > 0)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert found == [True, True]
