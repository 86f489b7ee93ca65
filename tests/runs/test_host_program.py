"""A run and the program that calls it: neither changes how the other computes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import flowrl
from flowrl.machine.numerics import THREAD_VARIABLES, settled_numerics
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher
from tests.sites.perturbed_environment import flush_to_zero
from tests.toys.toy_runs import toy_graph

SOUND = toy_graph({"c": "Source", "f": "FailingNode"}, ["c -> f"])
FAILING = toy_graph({"c": "Source", "f": {"type": "FailingNode", "firing": 1}}, ["c -> f"])


class UnwantedFunctionMode(TorchFunctionMode):
    """Fails when a call of torch goes through it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} went through the function mode of the caller")


class UnwantedDispatchMode(TorchDispatchMode):
    """Fails when an operator of torch goes through it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} went through the dispatch mode of the caller")


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


@contextmanager
def low_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "default device": default_device,
    "device context": partial(torch.device, "meta"),  # type: ignore[dict-item]
    "default dtype": default_dtype,
    "deterministic algorithms": deterministic_algorithms,
    "low precision": low_precision,
    "function mode": UnwantedFunctionMode,
    "dispatch mode": UnwantedDispatchMode,
    "numpy errors": partial(np.errstate, all="raise"),
}


def host_settings() -> dict[str, Any]:
    """What a program would notice if a run changed it."""
    denormal = np.array([1e-39], np.float32)
    return {
        "environment": {name: os.environ.get(name) for name in THREAD_VARIABLES},
        "threads": torch.get_num_threads(),
        "function modes": torch.overrides._get_current_function_mode_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "default device": getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None),
        "dtype": torch.get_default_dtype(),
        "autograd": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast dtype": torch.get_autocast_dtype("cpu"),
        "deterministic": torch.get_deterministic_debug_mode(),
        "precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "numpy errors": np.geterr(),
        "rounds to zero": bool((denormal * np.float32(0.5))[0] == 0),
    }


def digest(placement: str, out: Path) -> str:
    graph = flowrl.load("cartpole_dqn", {"limits.train_iters": 8})
    return graph.run(placement=placement, out=out).digest


@pytest.fixture(scope="module")
def usual_digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    return digest("serial", tmp_path_factory.mktemp("usual") / "r")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_a_mode_of_the_caller_does_not_change_the_bits(
    mode: str, placement: str, usual_digest: str, tmp_path: Path
) -> None:
    outside = host_settings()
    with MODES[mode]():
        before = host_settings()
        assert before != outside
        assert digest(placement, tmp_path / "r") == usual_digest
        assert host_settings() == before
    assert host_settings() == outside


def in_a_thread(work: Callable[[], None]) -> None:
    """Do it in a thread, because that thread's rounding cannot be restored in another way."""
    errors: list[BaseException] = []

    def do() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=do)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@pytest.fixture
def unusual_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process with settings of its own."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    torch.backends.mkldnn.enabled = False
    with default_dtype(), deterministic_algorithms(), low_precision():
        yield
    torch.backends.mkldnn.enabled = True
    torch.set_num_threads(threads)


@pytest.mark.parametrize("graph", [SOUND, FAILING], ids=["success", "error"])
@pytest.mark.parametrize("placement", ["serial", "threads"])
@pytest.mark.usefixtures("unusual_process")
def test_everything_is_put_back_at_the_end(
    graph: dict[str, Any], placement: str, tmp_path: Path
) -> None:
    def run() -> None:
        flush_to_zero()
        torch.set_num_threads(3)
        before = host_settings()
        try:
            flowrl.load(graph, {"limits.rounds": 2}).run(placement=placement, out=tmp_path / "r")
        except flowrl.NodeError:
            assert graph is FAILING
        else:
            assert graph is SOUND
        assert host_settings() == before

    in_a_thread(run)


class InterruptedAtTheStart(Watcher):
    """Sends the Ctrl-C of a terminal before the nodes are made."""

    def begin(self, run: Run) -> None:
        assert torch.get_num_threads() == 1
        signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("unusual_process")
def test_everything_is_put_back_after_an_interrupt_at_the_start(tmp_path: Path) -> None:
    before = host_settings()
    with pytest.raises(KeyboardInterrupt):
        flowrl.load(SOUND).run(out=tmp_path / "r", watcher=InterruptedAtTheStart())
    assert host_settings() == before


@pytest.mark.usefixtures("unusual_process")
def test_the_last_of_several_runs_puts_the_process_back() -> None:
    before = host_settings()
    first_has_ended = threading.Event()
    second_has_begun = threading.Event()
    found: list[Any] = []

    def second() -> None:
        with settled_numerics(1):
            second_has_begun.set()
            first_has_ended.wait(60)
            found.append((torch.get_default_dtype(), os.environ["OMP_NUM_THREADS"]))

    thread = threading.Thread(target=second)
    with settled_numerics(1):
        thread.start()
        second_has_begun.wait(60)
    first_has_ended.set()
    thread.join(60)
    assert found == [(torch.float32, "1")]
    assert host_settings() == before


@pytest.mark.slow
@pytest.mark.parametrize("threads", [None, "1"])
def test_torch_that_a_node_loads_has_its_own_defaults_afterwards(
    threads: str | None, tmp_path: Path
) -> None:
    run = (
        "import flowrl, sys\nassert 'torch' not in sys.modules\n"
        f"run = flowrl.load('cartpole_dqn', {{'limits.train_iters': 8}})\n"
        f"run.run(out={str(tmp_path / 'r')!r}, quiet=True)\n"
        "assert 'torch' in sys.modules\n"
    )
    tell = "import os, torch; print(torch.get_num_threads(), os.environ.get('OMP_NUM_THREADS'))"
    environment = {k: v for k, v in os.environ.items() if k not in THREAD_VARIABLES}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = threads

    def output(code: str) -> str:
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=300
        ).stdout

    assert output(run + tell) == output(tell)
