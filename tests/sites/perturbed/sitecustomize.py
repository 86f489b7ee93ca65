"""Python imports this module when it starts, if this folder is in its path."""

from tests.sites.perturbed_environment import perturb_process

perturb_process()
