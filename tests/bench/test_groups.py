"""`python -m bench groups` compares groups that learn from equally many rows."""

from __future__ import annotations

import pytest

import flowrl
from bench import groups


@pytest.mark.parametrize("reduce", ["exact", "fast"])
def test_each_learner_has_its_share_of_the_rows(reduce: str) -> None:
    checked = flowrl.load(groups.graph(2, reduce)).check()
    assert checked.problems == []
    nodes = checked.graph.nodes
    assert nodes["batches"].config.rows * nodes["batches"].replicas == groups.ROWS
    assert nodes["learner"].is_group
    assert nodes["learner"].torch_threads == 1
