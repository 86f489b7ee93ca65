"""Compares benchmarks of this checkout with those of another revision, alternating between both.

    python -m bench.compare REVISION [--repeats N] NAME[=ARGUMENTS] …
    python -m bench.compare 7fa882b --repeats 10 firing=300000 'channels=ipc --size 1024'

Each benchmark runs once for each revision, then once more in the opposite order, and so on. So a machine that becomes
slower or faster slows both alike. The table shows the median of every number that a benchmark returns, its
quartiles, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MARK = "RESULT "
CODE = (
    "import importlib, json, sys\n"
    "found = importlib.import_module(f'bench.{sys.argv[1]}').main(sys.argv[2:])\n"
    f"print('{MARK}' + json.dumps(found, default=str))\n"
)

Samples = dict[str, list[float]]  # by the name of a number


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("revision")
    parser.add_argument("benchmarks", nargs="+", metavar="NAME[=ARGUMENTS]")
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        other = check_out(arguments.revision, Path(folder))
        trees = {arguments.revision: other, "this checkout": ROOT}
        paths = {name: import_path(tree, Path(folder)) for name, tree in trees.items()}
        try:
            for benchmark in arguments.benchmarks:
                show(benchmark, measure(benchmark, trees, paths, arguments.repeats))
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True
            )


def check_out(revision: str, folder: Path) -> Path:
    tree = folder / "tree"
    words = ["git", "worktree", "add", "--quiet", "--detach", str(tree), revision]
    subprocess.run(words, cwd=ROOT, check=True)
    return tree


def import_path(tree: Path, folder: Path) -> str:
    """A PYTHONPATH on which a tree's packages lie as they are installed; it comes before what is installed."""
    packages = Path(tempfile.mkdtemp(dir=folder))
    (packages / "flowrl").mkdir()
    for entry in (*(tree / "flowrl").iterdir(), tree / "nodes", tree / "graphs"):
        (packages / "flowrl" / entry.name).symlink_to(entry)
    return os.pathsep.join([str(packages), str(tree)])


def measure(
    benchmark: str, trees: Mapping[str, Path], paths: Mapping[str, str], repeats: int
) -> dict[str, Samples]:
    """The numbers of a benchmark, by revision."""
    name, _, words = benchmark.partition("=")
    samples: dict[str, Samples] = {revision: {} for revision in trees}
    for repeat in range(repeats):
        for revision in list(trees)[:: -1 if repeat % 2 else 1]:
            done = subprocess.run(
                [sys.executable, "-c", CODE, name, *shlex.split(words)],
                cwd=trees[revision],
                env={**os.environ, "PYTHONPATH": paths[revision]},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            [line] = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
            for key, value in numbers(json.loads(line.removeprefix(MARK))):
                samples[revision].setdefault(key, []).append(value)
    return samples


def numbers(found: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a result, with the path of keys that leads to it."""
    if isinstance(found, Mapping):
        for name, value in found.items():
            yield from numbers(value, f"{key}, {name}" if key else str(name))
    elif isinstance(found, list):
        for index, value in enumerate(found):
            yield from numbers(value, f"{key}[{index}]")
    elif isinstance(found, int | float) and not isinstance(found, bool):
        yield key, float(found)


def show(benchmark: str, samples: Mapping[str, Samples]) -> None:
    before, after = samples.values()
    print(f"\n{benchmark}\n{'':<60} {'   '.join(f'{name:>25}' for name in samples)}    ratio")
    for key in (key for key in before if key in after):
        middle = statistics.median(before[key])
        ratio = statistics.median(after[key]) / middle if middle else float("nan")
        print(f"{key:<60} {spread(before[key]):>25}   {spread(after[key]):>25}   {ratio:6.3f}")
    for key in sorted(before.keys() ^ after.keys()):
        print(f"{key:<60} only in {'the other revision' if key in before else 'this checkout'}")
    sys.stdout.flush()


def spread(values: list[float]) -> str:
    """Median and quartiles."""
    if len(values) < 2:
        return f"{values[0]:.4g}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.4g} [{low:.4g}, {high:.4g}]"


if __name__ == "__main__":
    main()
