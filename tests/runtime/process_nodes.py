"""Nodes that report how their process was started."""

from __future__ import annotations

import sys
from typing import Any

from flowrl.core.batch import Batch
from flowrl.core.config import Config, param
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.node import Node
from flowrl.core.ports import In


class ModuleReporter(Node):
    """Declares modules that it needs, and logs which modules its process has loaded."""

    data = In("samples")

    class Config(Config):
        loads: list[str] = param([], "modules that it declares to need")
        looks_for: list[str] = param([], "modules that it logs if they are loaded")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(imports=tuple(config.loads))

    def setup(self) -> None:
        found = [name for name in self.config.looks_for if name in sys.modules]
        self.ctx.log(f"loaded: {', '.join(found) or 'none of them'}")

    def fire(self, data: Batch) -> None:
        """Do nothing."""


class PrintingNode(Node):
    """Prints, and reads from standard input."""

    data = In("samples")

    def fire(self, data: Batch) -> None:
        print("printed by a node")
        self.ctx.log(f"read {sys.stdin.read()!r}")
