"""A run that hangs ends the tests."""

from tests.sites.conftest import end_if_hanging

__all__ = ["end_if_hanging"]
