"""The tests of this folder have the time limit of tests/sites, and may have a virtual clock."""

from tests.runtime.virtual_clock import virtual_clock
from tests.sites.conftest import end_if_hanging

__all__ = ["end_if_hanging", "virtual_clock"]
