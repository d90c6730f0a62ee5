"""Compilers see one graph of each layer. Run without the run-time shape checks."""

import pytest
import torch
import torch._dynamo.testing

from tests.contracts.quantizer import waves
from tests.nn.test_readout import KINDS

pytestmark = pytest.mark.compiled


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_graph_without_breaks(kind, training):
    torch.manual_seed(0)
    layer = KINDS[kind]()
    layer(waves(4, 12, 8))
    layer.train(training)
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    z, mask = waves(2, 6, 8, phase=1.0), waves(2, 6) > -0.5
    out, expected = compiled(z, mask=mask), layer(z, mask=mask)
    assert counter.frame_count == 1
    torch.testing.assert_close(out[0], expected[0])
    torch.testing.assert_close(out.loss, expected.loss)
