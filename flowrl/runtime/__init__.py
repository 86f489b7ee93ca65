"""Executes the serial program: instances, edges, the scheduler of a site."""
