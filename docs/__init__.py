"""The pages of the documentation, which `flowrl docs` shows."""
