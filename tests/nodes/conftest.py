"""Every node test runs torch as sites do: with one thread."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> None:
    """Threads of small networks only wait for each other, and their number changes bits."""
    torch.set_num_threads(1)
