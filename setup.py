"""Lets type checkers follow an editable install, in which Python finds the packages by an import hook.

Such an install adds the folder `build/types` to Python's path. In it are links to the packages, in the places where a
wheel puts them, below `flowrl-stubs`: there type checkers look for flowrl, and Python does not.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).absolute().parent
TYPES = ROOT / "build" / "types"


def link_packages() -> bool:
    """Make the links. Return whether this file system and this user can have some."""
    shutil.rmtree(TYPES, ignore_errors=True)
    packages = TYPES / "flowrl-stubs"
    packages.mkdir(parents=True)
    try:
        for path in (*(ROOT / "flowrl").iterdir(), ROOT / "nodes"):
            # only as a stub is it found as the package itself
            name = "__init__.pyi" if path.name == "__init__.py" else path.name
            (packages / name).symlink_to(path)
    except OSError:
        return False
    return True


class TypedStrategy:
    """A strategy of setuptools for editable installs, with the folder of links on the path."""

    def __init__(self, strategy):
        self._strategy = strategy

    def __call__(self, wheel, files, mapping):
        self._strategy(wheel, files, mapping)
        wheel.writestr("__editable__.flowrl-types.pth", f"{TYPES}\n")

    def __enter__(self):
        self._strategy.__enter__()
        return self

    def __exit__(self, *error):
        return self._strategy.__exit__(*error)


class EditableWheel(editable_wheel):
    def _select_strategy(self, *arguments):
        strategy = super()._select_strategy(*arguments)
        return TypedStrategy(strategy) if link_packages() else strategy


setup(cmdclass={"editable_wheel": EditableWheel})
