"""The contract of optimizers: groups, state dicts, hooks, subclasses from outside."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn, optim
from refruntime.alloc import categories


def param(*values):
    return nn.Parameter(torch.tensor(values or (1.0, 2.0)))


def test_groups_take_defaults_and_keep_their_own_settings():
    opt = optim.SGD([{"params": [param()]}, {"params": param(), "lr": 0.5}], lr=0.1, momentum=0.9)
    assert [group["lr"] for group in opt.param_groups] == [0.1, 0.5]
    assert [group["momentum"] for group in opt.param_groups] == [0.9, 0.9]
    assert [len(group["params"]) for group in opt.param_groups] == [1, 1]


def test_named_parameters_keep_their_names():
    net = nn.Linear(2, 1)
    opt = optim.SGD(net.named_parameters(), lr=0.1)
    assert opt.param_groups[0]["param_names"] == ["weight", "bias"]
    assert opt.param_groups[0]["params"][0] is net.weight
    with pytest.raises(ValueError, match="with/without names"):
        opt.add_param_group({"params": [param()]})


@pytest.mark.parametrize(
    ("params", "error", "text"),
    [
        ([], ValueError, "empty parameter list"),
        (torch.ones(2), TypeError, "should be an iterable"),
        ([torch.ones(2).tolist()], TypeError, "can only optimize Tensors"),
        ([{"params": {param()}}], TypeError, "ordered collections"),
    ],
)
def test_parameters_that_cannot_be_optimized(params, error, text):
    with pytest.raises(error, match=text):
        optim.SGD(params, lr=0.1)


def test_a_parameter_stands_in_one_group_only():
    shared = param()
    with pytest.raises(ValueError, match="more than one parameter group"):
        optim.SGD([{"params": [shared]}, {"params": [shared]}], lr=0.1)
    with pytest.raises(ValueError, match="duplicate"):
        optim.SGD([shared, shared], lr=0.1)


def test_a_tensor_with_a_history_is_refused():
    with pytest.raises(ValueError, match="non-leaf"):
        optim.SGD([param() * 2], lr=0.1)


@pytest.mark.parametrize(
    ("kind", "settings", "text"),
    [
        (optim.SGD, {"lr": -1.0}, "learning rate"),
        (optim.SGD, {"nesterov": True}, "Nesterov"),
        (optim.Adam, {"betas": (1.0, 0.9)}, "beta parameter at index 0"),
        (optim.AdamW, {"eps": -1.0}, "epsilon"),
        (optim.RMSprop, {"momentum": -0.1}, "momentum"),
        (optim.Adadelta, {"rho": 2.0}, "rho"),
        (optim.Rprop, {"etas": (0.5, 0.9)}, "eta"),
        (optim.Adam, {"differentiable": True}, "differentiable"),
    ],
)
def test_settings_out_of_range(kind, settings, text):
    with pytest.raises(ValueError, match=text):
        kind([param()], **settings)


def test_zero_grad_drops_or_zeroes():
    p = param()
    opt = optim.SGD([p], lr=0.1)
    p.grad = torch.ones(2)
    grad = p.grad
    opt.zero_grad(set_to_none=False)
    assert p.grad is grad
    assert grad.tolist() == [0.0, 0.0]
    opt.zero_grad()
    assert p.grad is None


def test_a_closure_runs_with_gradients_and_its_loss_is_returned():
    p = param(3.0)
    opt = optim.SGD([p], lr=0.5)

    def closure():
        opt.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert float(opt.step(closure)) == 9.0
    assert p.tolist() == [0.0]
    assert not opt.param_groups[0]["params"][0].grad.requires_grad


def test_parameters_without_gradient_stay_and_get_no_state():
    still, moved = param(), param()
    opt = optim.Adam([still, moved], lr=0.1)
    moved.grad = torch.ones(2)
    opt.step()
    assert still.tolist() == [1.0, 2.0]
    assert still not in opt.state


def test_the_printed_form_lists_settings_by_group():
    text = repr(optim.SGD([{"params": [param()]}, {"params": [param()], "lr": 1.0}], lr=0.1))
    assert text == (
        "SGD (\n"
        + "\n\n".join(
            f"Parameter Group {i}\n    dampening: 0\n    differentiable: False\n    foreach: None\n"
            f"    fused: None\n    lr: {lr}\n    maximize: False\n    momentum: 0\n"
            "    nesterov: False\n    weight_decay: 0"
            for i, lr in ((0, 0.1), (1, 1.0))
        )
        + "\n)"
    )


def test_state_is_counted_as_optimizer_memory():
    p = param()
    opt = optim.Adam([p])
    p.grad = torch.ones(2)
    opt.step()
    assert opt.state[p]["exp_avg"].storage.category == categories.OPTIMIZER


def trained(steps=3):
    p = param()
    opt = optim.Adam([p], lr=0.1)
    for _ in range(steps):
        p.grad = torch.tensor([1.0, -2.0])
        opt.step()
    return p, opt


def test_a_state_dict_numbers_the_parameters():
    p, opt = trained()
    state = opt.state_dict()
    assert list(state["state"]) == [0]
    assert state["param_groups"][0]["params"] == [0]
    assert state["state"][0]["exp_avg"] is opt.state[p]["exp_avg"]
    assert float(state["state"][0]["step"]) == 3.0


def test_training_goes_on_from_a_state_dict_as_if_never_stopped():
    p, _ = trained(5)
    q, first = trained(3)
    second = optim.Adam([q], lr=9.0)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for _ in range(2):
        q.grad = torch.tensor([1.0, -2.0])
        second.step()
    assert second.param_groups[0]["lr"] == 0.1
    np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())


def test_loading_copies_and_casts_to_the_parameter():
    _, opt = trained()
    q = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    other = optim.Adam([q])
    state = opt.state_dict()
    other.load_state_dict(state)
    assert other.state[q]["exp_avg"].dtype is torch.float64
    assert other.state[q]["step"].dtype is torch.float32
    other.state[q]["exp_avg"].zero_()
    assert float(state["state"][0]["exp_avg"].abs().sum()) > 0


def test_step_counts_that_are_numbers_load():
    p, opt = trained()
    state = copy.deepcopy(opt.state_dict())
    state["state"][0]["step"] = 3
    opt.load_state_dict(state)
    p.grad = torch.ones(2)
    opt.step()
    assert float(opt.state[p]["step"]) == 4.0


def test_groups_that_do_not_match_are_refused():
    _, opt = trained()
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optim.Adam([{"params": [param()]}, {"params": [param()]}]).load_state_dict(opt.state_dict())
    with pytest.raises(ValueError, match="doesn't match the size"):
        optim.Adam([param(), param()]).load_state_dict(opt.state_dict())


def test_hooks_run_around_each_step():
    p, seen = param(), []
    opt = optim.SGD([p], lr=0.1)
    opt.register_step_pre_hook(lambda optimizer, args, kwargs: seen.append("before"))
    handle = opt.register_step_post_hook(lambda optimizer, args, kwargs: seen.append("after"))
    opt.step()
    handle.remove()
    opt.step()
    assert seen == ["before", "after", "before"]


def test_state_dict_hooks_may_replace_what_is_saved_and_loaded():
    _, opt = trained()
    opt.register_state_dict_post_hook(lambda optimizer, state: {**state, "note": 1})
    state = opt.state_dict()
    assert state["note"] == 1
    loaded = []
    opt.register_load_state_dict_pre_hook(lambda optimizer, state: loaded.append(state["note"]))
    opt.register_load_state_dict_post_hook(lambda optimizer: loaded.append("done"))
    opt.load_state_dict(state)
    assert loaded == [1, "done"]


def test_an_optimizer_survives_copying_and_pickling():
    _, opt = trained()
    for twin in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        (q,) = twin.param_groups[0]["params"]
        q.grad = torch.ones(2)
        twin.step()
        assert float(twin.state[q]["step"]) == 4.0


class Halving(optim.Optimizer):
    """A subclass from outside: its own step, another optimizer inside that shares its groups."""

    def __init__(self, params, base, **settings):
        super().__init__(params, dict(settings))
        self.base = base(self.param_groups, **settings)
        self.param_groups = self.base.param_groups

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["before"] = p.clone()
                    p.grad.mul_(0.5)
        self.base.step()


def test_a_subclass_from_outside_wraps_another_optimizer():
    p, seen = param(4.0), []
    opt = Halving([p], optim.SGD, lr=1.0)
    opt.register_step_post_hook(lambda *args: seen.append(1))
    p.grad = torch.tensor([2.0])
    opt.step()
    assert p.tolist() == [3.0]
    assert opt.state[p]["before"].tolist() == [4.0]
    assert seen == [1]


def test_the_base_class_has_no_step():
    with pytest.raises(NotImplementedError):
        optim.Optimizer([param()], {}).step()
