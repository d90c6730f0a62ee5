import pytest
import torch

from softvq.nn.layout import feature_axis, from_rows, index_shape, to_rows
from tests.contracts.quantizer import odd_layouts, waves


@pytest.mark.parametrize(
    ("layout", "shape", "expected"),
    [
        ("channels_last", (5, 3), (5,)),
        ("channels_last", (2, 4, 3), (2, 4)),
        ("channels_last", (2, 0, 3), (2, 0)),
        ("channels_first", (2, 3), (2,)),
        ("channels_first", (2, 3, 4, 5), (2, 4, 5)),
        ("channels_first", (0, 3, 4), (0, 4)),
    ],
)
def test_there_and_back_is_the_identity(layout, shape, expected):
    z = waves(*shape)
    rows = to_rows(z, layout=layout)
    assert index_shape(z, layout=layout) == expected
    assert rows.shape == (torch.Size(expected).numel(), 3)
    assert torch.equal(from_rows(rows, like=z, layout=layout), z)


def test_rows_are_vectors_and_not_pixels_mixed():
    """Case 10: where D = H = W a plain reshape runs, and is wrong."""
    z = waves(8, 8, 8, 8)
    rows = to_rows(z, layout="channels_first")
    expected = [z[b, :, i, j] for b in range(8) for i in range(8) for j in range(8)]
    assert torch.equal(rows, torch.stack(expected))


@pytest.mark.parametrize("name", ["channels_last", "strided", "transposed", "attached"])
def test_memory_layout_is_no_obstacle(name):
    z = waves(2, 4, 6, 10)
    rows = to_rows(odd_layouts(z)[name], layout="channels_first")
    assert torch.equal(rows, to_rows(z, layout="channels_first"))


@pytest.mark.parametrize("shape", [(2, 3, 4), (0, 3, 4)], ids=["some", "none"])
def test_gradient_goes_there_and_back(shape):
    z = waves(*shape).requires_grad_()
    from_rows(to_rows(z, layout="channels_first"), like=z, layout="channels_first").sum().backward()
    assert torch.equal(z.grad, torch.ones(shape))


def test_number_of_features_may_change():
    z = waves(2, 3, 4)
    assert from_rows(torch.zeros(8, 7), like=z, layout="channels_first").shape == (2, 7, 4)


@pytest.mark.parametrize(("layout", "axis"), [("channels_last", -1), ("channels_first", 1)])
def test_feature_axis(layout, axis):
    assert feature_axis(layout) == axis
