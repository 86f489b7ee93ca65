"""`python -m flowrl` is `flowrl`."""

from flowrl.cli import command

command()
