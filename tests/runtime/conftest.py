"""The tests of this folder have the time limit of tests/sites."""

from tests.sites.conftest import end_if_hanging

__all__ = ["end_if_hanging"]
