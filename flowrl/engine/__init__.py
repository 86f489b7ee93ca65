"""Executing the program: instances, their connections, firings."""
