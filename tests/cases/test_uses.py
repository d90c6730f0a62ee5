"""What people do with a quantizer that it was not made for: it works, or says what would.

Transformed functions, copies by threads, optimizers of another kind, rows beyond what a square
holds, tensors that are not dense.
"""

import copy

import pytest
import torch
from torch import nn

from softvq import SoftVQ, attach
from tests.cases.kinds import KINDS, make_attached, train_on
from tests.contracts.quantizer import waves
from tests.nn.members import COOL

pytestmark = pytest.mark.filterwarnings("ignore:The temperature hit a bound:UserWarning")


@pytest.mark.parametrize("kind", list(KINDS))
def test_eval_under_vmap_is_eval(kind):
    vq = KINDS[kind]()
    vq.start_(waves(64, 4))
    vq.eval()
    z = waves(3, 16, 4)
    with torch.no_grad():
        mapped = torch.func.vmap(lambda item: tuple(vq(item)[:2]))(z)
        quantized, indices, *_ = vq(z)
    torch.testing.assert_close(mapped, (quantized, indices), rtol=0, atol=0)


@pytest.mark.parametrize("kind", list(KINDS))
def test_gradients_of_each_item_leave_nothing_that_an_update_would_stumble_over(kind):
    model, optimizer = make_attached(kind)
    train_on(model, optimizer)
    weights = {name: each.detach() for name, each in model.named_parameters()}

    def loss_of(weights, x):
        out = torch.func.functional_call(model, weights, (x[None],))
        return (out.quantized - x).square().mean() + out.loss

    with pytest.warns(UserWarning, match=r"inside torch\.func\.vmap counts nowhere"):
        each = torch.func.vmap(torch.func.grad(loss_of), (None, 0))(weights, waves(8, 4))
    assert all(grad.shape[0] == 8 and grad.isfinite().all() for grad in each.values())
    updates = int(model[1].updates)
    assert model[1].update_() is None
    assert int(model[1].updates) == updates
    train_on(model, optimizer)
    assert int(model[1].updates) == updates + 1


@pytest.mark.parametrize("kind", list(KINDS))
def test_functional_gradients_of_a_batch_count_as_any_pass(kind):
    model, optimizer = make_attached(kind)
    train_on(model, optimizer)
    x = waves(32, 4)

    def loss_of(weights):
        out = torch.func.functional_call(model, weights, (x,))
        return (out.quantized - x).square().mean() + out.loss

    torch.func.grad(loss_of)(dict(model.named_parameters()))
    updates = int(model[1].updates)
    model[1].update_()
    assert int(model[1].updates) == updates + 1
    assert all(each.isfinite().all() for each in model[1].state_dict().values())


@pytest.mark.bad_input
@pytest.mark.parametrize("kind", list(KINDS))
def test_copies_of_data_parallel_may_not_train(kind):
    vq = KINDS[kind]()
    with pytest.raises(ValueError, match="use DistributedDataParallel"):
        vq._replicate_for_data_parallel()
    vq.eval()._replicate_for_data_parallel()


@pytest.mark.bad_input
def test_an_optimizer_of_one_group_is_told_how():
    model = nn.Sequential(nn.Linear(4, 4), SoftVQ(8, 4, temperature=COOL))
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ValueError, match=r"LBFGS.*codebook_lr='keep'"):
        attach(model, optimizer)
    assert len(optimizer.param_groups) == 1


def test_steps_of_many_evaluations_are_one_update_each():
    model = nn.Sequential(nn.Linear(4, 4), SoftVQ(8, 4, temperature=COOL))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-2, max_iter=3)
    with pytest.warns(UserWarning, match="codebook_lr='keep'"):
        attach(model, optimizer, codebook_lr="keep")
    x = waves(32, 4)

    def closure():
        optimizer.zero_grad()
        out = model(x)
        loss = (out.quantized - x).square().mean() + out.loss
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert int(model[1].updates) == 2


# Rows beyond what a square holds


@pytest.mark.parametrize("scale", [1e20, 3e38])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_batch_of_enormous_rows_is_forgotten(kind, scale):
    """Their sums made averages infinite, for ever where nothing is revived."""
    vq = KINDS[kind]()
    vq(waves(64, 4))
    vq.update_()
    twin = copy.deepcopy(vq)
    vq(scale * (waves(64, 4) + 3))
    with pytest.warns(UserWarning, match="too large to be squared"):
        vq.update_()
    state, expected = vq.state_dict(), twin.state_dict()
    assert [k for k in state if not torch.equal(state[k], expected[k])] == []


@pytest.mark.bad_input
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_codebook_does_not_start_on_enormous_rows(kind):
    with pytest.raises(ValueError, match=r"z holds values up to .*e\+\d\d, whose squares"):
        KINDS[kind]()(1e20 * waves(64, 4))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("z", "match"),
    [
        (torch.zeros(3, 4).to_sparse(), "z must be a dense tensor; got torch.sparse_coo"),
        ([[0.0] * 4], "z must be a tensor; got list"),
    ],
    ids=["sparse", "list"],
)
def test_what_is_no_plain_tensor_is_refused(z, match):
    with pytest.raises(ValueError, match=match):
        SoftVQ(8, 4)(z)


@pytest.mark.bad_input
def test_sequences_in_a_nested_tensor_are_sent_to_a_mask():
    nested = torch.nested.nested_tensor([torch.zeros(3, 4), torch.zeros(2, 4)], layout=torch.jagged)
    with pytest.raises(ValueError, match=r"z must be a dense tensor; got nested.*with a mask"):
        SoftVQ(8, 4)(nested)


@pytest.mark.bad_input
def test_lengths_that_are_no_tensor_are_refused():
    with pytest.raises(ValueError, match=r"lengths must be a tensor \(B,\); got list"):
        SoftVQ(8, 4)(waves(2, 3, 4), lengths=[3, 2])
