import pytest
import torch

from train.order import BatchOrder


def steps_of(order, steps):
    return torch.cat([order.batch(step) for step in steps])


@pytest.mark.parametrize(("images", "batch"), [(12, 4), (12, 12), (7, 1)], ids=str)
def test_an_epoch_has_each_image_once(images, batch):
    order = BatchOrder(images, batch, seed=0)
    for_epoch = images // batch
    first = steps_of(order, range(for_epoch))
    second = steps_of(order, range(for_epoch, 2 * for_epoch))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(images))


def test_epochs_are_shuffled_each_in_its_own_way():
    order = BatchOrder(100, 50, seed=0)
    first, second = steps_of(order, [0, 1]), steps_of(order, [2, 3])
    assert first.tolist() != list(range(100))
    assert first.tolist() != second.tolist()


def test_what_fills_no_batch_is_left_for_another_epoch():
    order = BatchOrder(10, 4, seed=0)
    seen = [set(steps_of(order, [2 * epoch, 2 * epoch + 1]).tolist()) for epoch in range(8)]
    assert {len(each) for each in seen} == {8}
    assert set.union(*seen) == set(range(10))


@pytest.mark.parametrize("steps", [[5], [5, 0, 5], [9, 5, 1, 5], [0, 1, 2, 3, 4, 5]], ids=str)
def test_a_step_is_the_same_whatever_was_asked_before(steps):
    expected = BatchOrder(10, 3, seed=7).batch(5)
    order = BatchOrder(10, 3, seed=7)
    found = [order.batch(step) for step in steps]
    assert torch.equal(found[-1], expected)


def test_seeds_differ():
    one, two = (BatchOrder(100, 50, seed=seed).batch(0) for seed in (0, 1))
    assert one.tolist() != two.tolist()


def test_the_global_generator_plays_no_part():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = BatchOrder(100, 50, seed=0).batch(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(BatchOrder(100, 50, seed=0).batch(0), first)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("images", "batch", "message"),
    [
        (4, 5, "batch_size is 5, but there are only 4 training images."),
        (0, 1, "num_images must be a whole number of at least 1; got 0."),
        (4, 0, "batch_size must be a whole number of at least 1; got 0."),
    ],
)
def test_a_batch_that_cannot_be_is_refused(images, batch, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        BatchOrder(images, batch, seed=0)
