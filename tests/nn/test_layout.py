import pytest
import torch

from softvq.nn.layout import (
    feature_axis,
    from_rows,
    index_shape,
    mask_from_lengths,
    resolve_mask,
    to_rows,
)
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


@pytest.mark.parametrize("shape", [(3, 5), (3, 2, 3), (3, 1, 2, 3)], ids=str)
def test_lengths_count_positions_row_by_row(shape):
    places = torch.Size(shape[1:]).numel()
    mask = mask_from_lengths(torch.tensor([0, 2, places]), shape)
    expected = [[place < length for place in range(places)] for length in (0, 2, places)]
    assert mask.reshape(3, -1).tolist() == expected


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("lengths", "match"),
    [
        (torch.tensor([1.0, 2.0]), r"lengths must be whole numbers \(B,\); got torch.float32"),
        (torch.tensor([[1, 2]]), r"lengths must be whole numbers.*\(1, 2\)"),
        (torch.tensor([1, 2, 3]), r"lengths must have one entry for each item.*got 3.*\(2, 4\)"),
        (torch.tensor([1, 5]), r"lengths must lie in \[0, 4\].*from 1 to 5"),
        (torch.tensor([-1, 2]), r"lengths must lie in \[0, 4\].*from -1 to 2"),
    ],
    ids=["float", "2-d", "count", "long", "negative"],
)
def test_lengths_that_do_not_fit_are_refused(lengths, match):
    with pytest.raises(ValueError, match=match):
        mask_from_lengths(lengths, (2, 4))


@pytest.mark.bad_input
def test_a_mask_and_lengths_say_the_same_thing():
    with pytest.raises(ValueError, match="give one of them"):
        resolve_mask(torch.ones(2, 4, dtype=torch.bool), torch.tensor([1, 2]), shape=(2, 4))
    with pytest.raises(ValueError, match="one entry for each item"):
        resolve_mask(None, torch.tensor([1]), shape=(4,))
