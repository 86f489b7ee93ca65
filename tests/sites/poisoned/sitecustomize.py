"""Python imports this by itself where this folder is in its path: the process is poisoned from its beginning on."""

from tests.sites.poison import poison_process

poison_process()
