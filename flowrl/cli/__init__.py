"""The command line: `flowrl VERB …`. One verb, one job."""

from flowrl.cli.main import main

__all__ = ["main"]
