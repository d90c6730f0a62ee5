import pytest
import torch

from softvq import DDCLAttention, DDCLReadout, Temperature
from softvq.explain import explain_shares
from tests.contracts.quantizer import assert_same_state, snapshot, waves

ABSOLUTE = Temperature(gradient=0.5, prototypes=0.3, unit="absolute")


@pytest.mark.parametrize("training", [True, False])
def test_shares_are_the_layers_weights_and_nothing_else_changes(training):
    layer = DDCLAttention(8, 4, heads=2, temperature=ABSOLUTE)
    layer(waves(4, 12, 8))
    layer.train(training)
    before = snapshot(layer)
    z, mask = waves(2, 5, 8, phase=1.0), torch.arange(5).repeat(2, 1) < torch.tensor([[5], [3]])
    shares = explain_shares(layer, z, mask=mask)
    assert layer.prototypes.training == training
    assert_same_state(layer, before)
    expected = layer.eval()(z, mask=mask).assignment
    assert torch.equal(shares.tokens, expected)
    torch.testing.assert_close(shares.total[1], expected[1, :, :3].mean(1))
    torch.testing.assert_close(shares.total.sum(-1), torch.ones(2, 2))


def test_the_total_of_a_readout_is_its_bag():
    layer = DDCLReadout(8, 4, temperature=ABSOLUTE)
    layer(waves(4, 12, 8))
    z = waves(2, 5, 8, phase=1.0)
    torch.testing.assert_close(
        explain_shares(layer, z).total[:, 0], layer.eval()(z).assignment.detach()
    )
