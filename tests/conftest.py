"""Fixtures of all tests: a registry of runs of their own, files and graphs in a temporary folder, forked processes.

The quick suite (`make test`, about three minutes on two cores) covers each idea once, with short runs, a selection of
combinations, and a third of the examples of costly properties (`tests/quick_selection.py`). A test whose cases take
more than half a second altogether, and more than a tenth each, is slow, unless nothing else would show that an idea
holds. The slow suite (`make test-slow`) has those, most of them with processes: end-to-end tests, tests of placements
and faults, and a few short learning runs. CI runs these two (`.ci/run`). The exhaustive
suite (the rest of `make test-all`) has the full products of which the others have a selection, all examples of
properties, learning runs up to their goal, and long series of failures. Tests that are not about processes fork theirs
from a pool (`tests/fork_pool.py`), because Python needs half a second to start and import.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import settings

from flowrl.checks.check import CheckedGraph, check
from flowrl.graph.loading import load_graph
from flowrl.machine import environment
from flowrl.machine.numerics import THREAD_VARIABLES
from tests.fork_pool import ForkPool
from tests.needs import skip_or_fail_without
from tests.quick_selection import FULL_PROFILE
from tests.sites.perturbed_environment import perturbed_environment

# The environment is set before any module of the tests copies it. Tests start hundreds of Python processes: each would
# compile the same modules again, and idle threads of numerical libraries would take the cores from others.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
# A shell that runs the tests in the background lets them, and every process that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Thousands of runs note the state of this repository.
environment.git_state = cache(environment.git_state)
RUNTIME_FOLDER = os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="flowrl-")


@pytest.fixture(autouse=True)
def unload_test_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Several tests write a module with the same name beside their graph."""
    path, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    folder = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - known:
        # not getattr: some modules invent any attribute
        namespace = getattr(sys.modules[name], "__dict__", {})
        paths = namespace.get("__path__") or [namespace.get("__file__") or ""]
        if any(str(path).startswith(folder) for path in paths):
            del sys.modules[name]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every exhaustive test is slow, too, so that `-m "not slow"` is the quick suite."""
    for item in items:
        if item.get_closest_marker("exhaustive"):
            item.add_marker("slow")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for program in mark.args:
            skip_or_fail_without(program)


@pytest.fixture(scope="session")
def fork_pool() -> Iterator[ForkPool]:
    pool = ForkPool()
    yield pool
    pool.close()


@pytest.fixture
def forked_processes(fork_pool: ForkPool) -> Iterator[None]:
    """A fork pool replaces the start of child processes: 10 ms each instead of half a second."""
    with fork_pool.replacing_popen():
        yield


@pytest.fixture(scope="session")
def perturbed_fork_pool() -> Iterator[ForkPool]:
    pool = ForkPool(perturbed_environment())
    yield pool
    pool.close()


@pytest.fixture
def perturbed_processes(perturbed_fork_pool: ForkPool) -> Iterator[None]:
    """Child processes are forked from one whose global state is perturbed."""
    with perturbed_fork_pool.replacing_popen():
        yield


def pytest_unconfigure() -> None:
    shutil.rmtree(RUNTIME_FOLDER, ignore_errors=True)


# In CI each property has the same examples every time, so that a change fails only by what it changes.
settings.register_profile("same examples", derandomize=True, deadline=None)
settings.register_profile(FULL_PROFILE, deadline=None)
settings.load_profile("same examples")

Write = Callable[..., Path]
Check = Callable[..., CheckedGraph]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file of the folder, `g.yaml` by default; graphs in it may name the toys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "toys"))

    def write(text: str, name: str = "g.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    return write


@pytest.fixture
def checked(write: Write) -> Check:
    """Check a graph: the text of `g.yaml`, and values as `--set` takes them."""

    def checked(text: str, **sets: str) -> CheckedGraph:
        write(text)
        return check(load_graph("g.yaml", {k.replace("__", "."): v for k, v in sets.items()}))

    return checked


@pytest.fixture
def problems(checked: Check) -> Callable[..., list[str]]:
    """The problems of a graph, as they are printed."""
    return lambda text, **sets: [str(p) for p in checked(text, **sets).problems]
