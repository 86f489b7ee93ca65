"""Node tests run torch with one thread, as sites do, and fork their env workers from a pool."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> None:
    """Threads of small networks only wait for each other, and their number changes bits."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fork_workers(request: pytest.FixtureRequest) -> None:
    """Tests that are marked `real_processes` start workers as programs do."""
    if not request.node.get_closest_marker("real_processes"):
        request.getfixturevalue("forked_processes")
