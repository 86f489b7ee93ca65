"""The arguments of benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from flowrl.core.errors import spelling_hint


def benchmark_parser(module: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark's arguments. Its help begins with the docstring of the benchmark's module."""
    return argparse.ArgumentParser(
        f"python -m bench {module.rpartition('.')[2]}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """The type of an argument that is one of these names; unlike `choices` it allows that none is given."""
    known = list(names)

    def parse(word: str) -> str:
        if word not in known:
            raise argparse.ArgumentTypeError(f"unknown '{word}'; {spelling_hint(word, known)}")
        return word

    return parse
