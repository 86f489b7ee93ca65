"""Networks: leading dimensions, several inputs, copies, masks, unrolls, and whose parameters get gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Column
from flowrl.nodes.models.action_mask import FORBIDDEN
from flowrl.nodes.models.heads import DuelingHead, ImplicitHead, LinearHead, ScalarHead
from flowrl.nodes.models.input_columns import input_columns
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.networks import LearnedNumber, Network, TrainableNetwork
from flowrl.nodes.models.recurrent import Gru, Lstm
from flowrl.nodes.observations import NestedColumns

OBS, ACTION = Column("float32", (4,)), Column("float32", (2,))
HEADS = {"q": LinearHead(3), "atoms": LinearHead(3, each=5), "v": ScalarHead()}
MASKED = NestedColumns({"action_mask": Column("int8", (3,), n=2), "state": OBS})


def network(inputs: Any = None, model: Any = None, copies: int | None = None, **params: Any) -> Any:
    inputs = inputs or {"obs": OBS}
    model = model or Mlp(hidden=[6])
    heads = params.pop("heads", HEADS)
    module = model.build(input_columns(inputs), heads, 0, copies)
    return TrainableNetwork(module, inputs, recurrent=bool(model.memory_columns()), **params)


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("lead", [(6,), (2, 3), (3, 2, 1), (1, 1, 2, 3)])
def test_inputs_may_have_any_leading_dimensions(lead: tuple[int, ...]) -> None:
    net, x = network(), values(6, 4)
    flat, found = net(x), net(x.view(*lead, 4))
    for name, head in flat.items():
        assert found[name].shape == (*lead, *head.shape[1:])
        torch.testing.assert_close(found[name].reshape(head.shape), head)


def test_leading_dimensions_of_discrete_observations_are_found() -> None:
    column = Column("int64", n=5)
    net = network({"obs": column})
    x = torch.tensor([[0, 1, 4], [3, 3, 2]])
    torch.testing.assert_close(net(x)["q"].flatten(0, 1), net(x.flatten())["q"])


def test_fractions_have_the_leading_dimensions_of_their_rows() -> None:
    net = network(heads={"z": ImplicitHead(3, cosines=4)})
    x, tau = values(2, 3, 4), torch.rand(2, 3, 7)
    found = net(x, tau=tau)["z"]
    assert found.shape == (2, 3, 7, 3)
    wanted = net(x.flatten(0, 1), tau=tau.flatten(0, 1))["z"]
    torch.testing.assert_close(found.flatten(0, 1), wanted)


def test_several_inputs_are_given_by_name() -> None:
    net = network({"obs": OBS, "action": ACTION})
    obs, action = values(2, 3, 4), values(2, 3, 2, seed=1)
    found = net(obs=obs, action=action)["v"]
    assert found.shape == (2, 3)
    torch.testing.assert_close(net(action=action, obs=obs)["v"], found)
    layers = [net.module.trunk[0], net.module.v.out]
    x = layers[1](layers[0](torch.cat([obs, action], -1))).squeeze(-1)
    torch.testing.assert_close(found, x)


def test_the_leaves_of_a_nested_input_are_one_of_several_inputs() -> None:
    nested = NestedColumns({"a": OBS, "b": Column("int64", n=3)})
    net = network({"obs": nested, "action": ACTION})
    obs = {"a": values(5, 4), "b": torch.tensor([0, 2, 1, 1, 0])}
    assert net(obs=obs, action=values(5, 2))["q"].shape == (5, 3)
    one_hot = torch.nn.functional.one_hot(obs["b"], 3).float()
    layer = net.module.trunk[0]
    found = net(obs=obs, action=values(5, 2))["v"]
    x = layer(torch.cat([obs["a"], one_hot, values(5, 2)], 1))
    torch.testing.assert_close(found, net.module.v.out(x).squeeze(1))


def test_copies_are_networks_of_their_own_with_heads_along_an_axis() -> None:
    net = network({"obs": OBS, "action": ACTION}, copies=3)
    inputs = {"obs": values(2, 5, 4), "action": values(2, 5, 2, seed=1)}
    found = net(**inputs)
    assert {name: head.shape for name, head in found.items()} == {
        "q": (2, 5, 3, 3),
        "atoms": (2, 5, 3, 3, 5),
        "v": (2, 5, 3),
    }
    flat = {name: x.flatten(0, 1) for name, x in inputs.items()}
    for k, copy in enumerate(net.module.copies):
        torch.testing.assert_close(found["v"][..., k].flatten(), copy(flat)["v"])
    assert not torch.equal(found["v"][..., 0], found["v"][..., 1])
    before = [p.detach().clone() for p in net.module.copies[1].parameters()]
    net.descend(net(**inputs)["v"][..., 0].sum(), 0.1)
    after = list(net.module.copies[1].parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("lead", [(4,), (2, 2)])
@pytest.mark.parametrize("head", ["q", "atoms"])
def test_masked_heads_have_the_forbidden_score(head: str, lead: tuple[int, ...]) -> None:
    inputs = {"obs": MASKED}
    free, net = network(inputs), network(inputs, masked=head, masks_each=head == "atoms")
    mask = torch.tensor([[1, 0, 1], [1, 1, 1], [0, 0, 1], [0, 1, 0]], dtype=torch.int8)
    obs = {"action_mask": mask.view(*lead, 3), "state": values(*lead, 4)}
    found, without = net(obs), free(obs)
    forbidden = (obs["action_mask"] == 0).view(*lead, 3, *[1] * (found[head].dim() - len(lead) - 1))
    wanted = torch.where(forbidden, FORBIDDEN, without[head])
    torch.testing.assert_close(found[head], wanted)
    for other in {"q", "atoms", "v"} - {head}:
        torch.testing.assert_close(found[other], without[other])


@pytest.mark.parametrize("head", ["q", "atoms"])
def test_the_mask_holds_for_every_copy(head: str) -> None:
    """Also where there are as many copies as actions."""
    inputs = {"obs": MASKED}
    net = network(inputs, masked=head, masks_each=head == "atoms", copies=3)
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]], dtype=torch.int8)
    obs = {"action_mask": mask, "state": values(2, 4)}
    found, copies = net(obs)[head], net.module.copies
    for k, copy in enumerate(copies):
        one = copy(obs)[head]
        forbidden = (mask == 0).view(2, 3, *[1] * (one.dim() - 2))
        torch.testing.assert_close(found[:, k], torch.where(forbidden, FORBIDDEN, one))


def test_the_mask_of_an_implicit_head_is_of_actions_not_of_fractions() -> None:
    net = network({"obs": MASKED}, masked="z", heads={"z": ImplicitHead(3, cosines=4)})
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]], dtype=torch.int8)
    obs = {"action_mask": mask, "state": values(2, 4)}
    for fractions in (3, 5):
        found = net(obs, tau=torch.rand(2, fractions))["z"]
        forbidden = (mask == 0).unsqueeze(1).expand(2, fractions, 3)
        assert torch.equal(found == FORBIDDEN, forbidden)


def test_the_mask_is_found_among_several_inputs() -> None:
    net = network({"obs": MASKED, "action": ACTION}, masked="q")
    obs = {"action_mask": torch.tensor([[1, 0, 1]], dtype=torch.int8), "state": values(1, 4)}
    found = net(obs=obs, action=values(1, 2))["q"]
    assert (found == FORBIDDEN).tolist() == [[False, True, False]]


# Unrolls


@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize("model", [Gru(size=5), Lstm(size=5)], ids=["gru", "lstm"])
def test_an_unroll_of_a_recurrent_network_equals_single_steps(model: Any, burn_in: int) -> None:
    net = network(model=model)
    [column] = model.memory_columns().values()
    obs, memory = values(3, 6, 4), values(3, *column.shape, seed=1)
    begins = torch.zeros((3, 6), dtype=torch.bool)
    begins[1, 4] = begins[2, 1] = True
    found = net.unroll(obs, memory, begins, burn_in)
    assert found["q"].shape == (3, 6 - burn_in, 3)
    state = memory
    for t in range(6):
        one = net.unroll(obs[:, t : t + 1], state, begins[:, t : t + 1])
        state = one["memory"][:, 0]
        if t >= burn_in:
            for name in ("q", "v", "memory"):
                torch.testing.assert_close(found[name][:, t - burn_in], one[name][:, 0])


@pytest.mark.parametrize("burn_in", [0, 2])
def test_an_unroll_of_a_network_without_memory_has_the_heads_of_its_steps(burn_in: int) -> None:
    net, obs = network(), values(3, 6, 4)
    begins = torch.zeros((3, 6), dtype=torch.bool)
    found = net.unroll(obs, None, begins, burn_in)
    wanted = net(obs[:, burn_in:])
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name])


def test_the_burn_in_has_no_gradients() -> None:
    net, obs = network(model=Gru(size=5)), values(3, 6, 4).requires_grad_()
    memory = values(3, 5, seed=1).requires_grad_()
    found = net.unroll(obs, memory, torch.zeros((3, 6), dtype=torch.bool), 2)
    slopes = torch.autograd.grad(found["v"].sum(), [obs, memory], allow_unused=True)
    assert slopes[0] is not None
    assert (slopes[0][:, :2] == 0).all()
    assert (slopes[0][:, 2:] != 0).any()
    assert slopes[1] is None


def test_nested_observations_are_unrolled_and_masked() -> None:
    net = network({"obs": MASKED}, model=Gru(size=5), masked="q")
    mask = torch.tensor([1, 0, 1], dtype=torch.int8).expand(2, 4, 3)
    obs = {"action_mask": mask, "state": values(2, 4, 4)}
    found = net.unroll(obs, values(2, 5), torch.zeros((2, 4), dtype=torch.bool), 1)
    assert (found["q"][..., 1] == FORBIDDEN).all()
    assert (found["q"][..., 0] > FORBIDDEN).all()
    assert found["q"].shape == (2, 3, 3)


def test_a_recurrent_network_needs_the_memory_before_its_unrolls() -> None:
    net = network(model=Gru(size=5))
    with pytest.raises(TypeError, match="needs the memory before its unrolls"):
        net.unroll(values(1, 2, 4), None, torch.zeros((1, 2), dtype=torch.bool))
    with pytest.raises(TypeError, match="needs its memory and the begins"):
        net(values(1, 4))


# Gradients


def test_descending_gives_gradients_to_the_networks_own_parameters_only() -> None:
    actor = network(heads={"x": LinearHead(2)})
    critic = network({"obs": OBS, "action": ACTION}, heads={"q": ScalarHead()})
    before, obs = critic.params.clone(), values(5, 4)
    loss = -critic(obs=obs, action=actor(obs)["x"])["q"].mean()
    actor.descend(loss, 0.01)
    assert actor.grads.abs().max() > 0
    assert (critic.grads == 0).all()
    assert torch.equal(critic.params, before)


def test_descending_with_others_lets_each_do_a_step_of_its_own() -> None:
    one, other = network(max_grad_norm=1e-3), network(heads={"x": LinearHead(4)})
    starts, obs = [net.params.clone() for net in (one, other)], values(5, 4)
    norm = one.descend(one(other(obs)["x"])["v"].square().mean(), 0.01, also=[other])
    assert all(not torch.equal(a, b.params) for a, b in zip(starts, (one, other), strict=True))
    assert norm > 1e-3
    assert one.grads.norm() == pytest.approx(1e-3, rel=1e-2)  # each is clipped by its own limit
    assert other.grads.norm() > 1e-3


def test_gradients_do_not_add_up_over_iterations() -> None:
    net, obs = network(), values(5, 4)
    net.descend(net(obs)["v"].sum(), 0.0)
    first = net.grads.clone()
    net.descend(net(obs)["v"].sum(), 0.0)
    torch.testing.assert_close(net.grads, first)


def test_a_learned_number_moves_down_its_gradient_and_is_saved() -> None:
    one, other = LearnedNumber(0.5), LearnedNumber(3.0)
    one.descend(one.value * 2, 0.1)
    assert one.value.item() == pytest.approx(0.4)  # the first step of Adam is as long as the rate
    other.load_state_dict(one.state_dict())
    for number in (one, other):
        number.descend((number.value - 7).square(), 0.1)
    assert torch.equal(one.params, other.params)


def test_a_copy_has_the_masks_and_inputs_of_its_network() -> None:
    net = network({"obs": MASKED}, masked="q", heads={"q": DuelingHead(3)})
    obs = {"action_mask": torch.tensor([[1, 0, 1]], dtype=torch.int8), "state": values(1, 4)}
    target = net.frozen_copy()
    assert isinstance(target, Network)
    np.testing.assert_array_equal(target(obs)["q"].numpy(), net(obs)["q"].detach().numpy())
