"""A run that hangs ends the tests."""

from tests.sites.conftest import ends

__all__ = ["ends"]
