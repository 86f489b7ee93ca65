"""The facts of machines on which the bits of a result depend."""

from __future__ import annotations

import subprocess
import sys

from flowrl.cluster.compatibility import host_warnings, incompatibilities, machine_facts


def test_versions_must_be_the_same() -> None:
    run = machine_facts()
    assert list(incompatibilities(run, run)) == []
    assert list(incompatibilities(run, {**run, "torch": "", "python": "2.7"})) == [
        f"it has python 2.7, and the run has {run['python']}",
        f"it has no torch, and the run has {run['torch']}",
    ]


def test_machines_that_differ_cause_a_warning_and_equal_ones_do_not() -> None:
    run = machine_facts()
    assert list(host_warnings("a", run, run)) == []
    [line] = host_warnings("a", run, {**run, "torch_build": "2.13.0+cu131"})
    assert line.startswith("host 'a' has another build of torch (2.13.0+cu131; the run has ")
    host = {**run, "choices": "MKL_CBWR=AVX2"}
    [line] = host_warnings("a", {**run, "choices": ""}, host)
    assert "choice of instructions in its environment (MKL_CBWR=AVX2; the run has none)" in line


def test_facts_do_not_load_torch() -> None:
    code = (
        "import sys; from flowrl.cluster.compatibility import machine_facts; f = machine_facts(); "
        "assert f['torch_build'].startswith(f['torch']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
