"""The command line: `flowrl VERB …`. One verb, one job."""

from flowrl.cli.main import command, main

__all__ = ["command", "main"]
