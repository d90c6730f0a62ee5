import pytest
import torch

from softvq import Temperature, attach
from softvq.nn import ImplicitVQ
from tests.contracts.quantizer import start_on, waves

COOL = Temperature(gradient=0.8, warmup_share=0.0, anneal_steps=50)


def test_codes_are_the_table_through_the_map():
    vq = start_on(ImplicitVQ(16, 4, temperature=COOL), waves(64, 4))
    table = vq.table.clone()
    assert torch.equal(vq.codebook, table)
    with torch.no_grad():
        vq.change.copy_(0.1 * waves(4, 4))
        vq.shift.copy_(waves(4))
    expected = table.double() @ (torch.eye(4).double() + vq.change.double()) + vq.shift.double()
    torch.testing.assert_close(vq.codebook.double(), expected, rtol=0, atol=1e-6)


def test_every_row_moves_every_code_and_the_table_stays():
    vq = start_on(ImplicitVQ(16, 4, temperature=COOL), waves(64, 4))
    table, before = vq.table.clone(), vq.codebook.detach().clone()
    optimizer = torch.optim.Adam(vq.parameters(), lr=1e-2)
    attach(vq, optimizer)
    assert not any(group.get("softvq") for group in optimizer.param_groups)
    out = vq(waves(1, 4, phase=3.0).requires_grad_())
    (out.quantized.square().sum() + out.loss).backward()
    optimizer.step()
    assert torch.equal(vq.table, table)
    assert ((vq.codebook - before).abs().amax(-1) > 0).all()


def test_few_rows_give_codes_of_their_mean_and_covariance():
    vq = ImplicitVQ(4096, 3, temperature=COOL)
    rows = waves(100, 3) @ torch.tensor([[2.0, 0.5, 0], [0, 1.0, 0], [0, 0, 0.1]]) + 5
    vq.start_(rows)
    torch.testing.assert_close(vq.codebook.mean(0), rows.mean(0), rtol=0, atol=0.1)
    torch.testing.assert_close(vq.codebook.mT.cov(), rows.mT.cov(), rtol=0.1, atol=0.05)


def test_a_checkpoint_without_a_table_is_told_once_it_is_used():
    vq = ImplicitVQ(16, 4).eval()
    vq.load_state_dict({}, strict=False)
    with pytest.warns(UserWarning, match="holds no table"):
        vq(waves(5, 4))


@pytest.mark.bad_input
def test_a_table_of_another_size_is_refused_by_name():
    with pytest.raises(RuntimeError, match=r"table in the checkpoint is \(K, D\) = \(8, 4\)"):
        ImplicitVQ(16, 4).load_state_dict(ImplicitVQ(8, 4).state_dict())
