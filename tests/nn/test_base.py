import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from softvq import HardVQ, Quantizer, SoftVQ
from tests.contracts.quantizer import place, snapshot, start_on, waves


@pytest.fixture(params=[SoftVQ, HardVQ])
def vq(request):
    return start_on(request.param(16, 4), waves(64, 4))


def test_the_base_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Quantizer(4, 2, revival=None, layout="channels_last", seed=0)


# What is told, and how often


def test_eval_with_a_gradient_wanted_is_told_once(vq):
    vq.eval()
    with pytest.warns(UserWarning, match=r"eval mode.*no gradient reaches the encoder.*train\(\)"):
        vq(waves(5, 4).requires_grad_())
    vq(waves(5, 4).requires_grad_())


def test_eval_without_grad_is_told_nothing(vq):
    with torch.no_grad():
        vq.eval()(waves(5, 4).requires_grad_())
    vq(waves(5, 4))


def test_training_without_updates_is_told_once(vq):
    z = waves(2, 4)
    for _ in range(500):
        vq(z)
    with pytest.warns(UserWarning, match=r"500 training passes without update_\(\).*attach\("):
        vq(z)
    vq(z)


def test_an_update_starts_the_patience_anew(vq):
    for _ in range(2):
        for _ in range(300):
            vq(waves(2, 4))
        vq.update_()


@pytest.mark.parametrize("junk", [torch.nan, torch.inf], ids=str)
def test_rows_that_are_no_numbers_are_told_once_and_count_nowhere(vq, junk):
    twin = type(vq).from_config(vq.config())
    twin.load_state_dict(vq.state_dict())
    z = waves(30, 4, phase=1.0)
    spoilt = torch.cat([z, torch.full((2, 4), junk)])
    vq(spoilt)
    with pytest.warns(UserWarning, match="2 rows since the last update.*NaN or infinite"):
        vq.update_()
    vq(spoilt)
    vq.update_()
    for _ in range(2):
        twin(z)
        twin.update_()
    torch.testing.assert_close(vq.hits, twin.hits)
    assert all(held.isfinite().all() for held in vq.state_dict().values())
    if isinstance(vq, HardVQ):
        torch.testing.assert_close(vq.codebook, twin.codebook)


def test_a_batch_of_rubbish_leaves_the_state(vq):
    before = snapshot(vq)
    vq(torch.full((5, 4), torch.nan))
    with pytest.warns(UserWarning, match="5 rows"):
        assert vq.update_() is None
    assert all(torch.equal(held, before[name]) for name, held in vq.state_dict().items())


def test_a_last_pass_without_rows_does_not_lose_the_earlier_ones(vq):
    before = vq.hits.clone()
    vq(waves(30, 4, phase=1.0))
    vq(waves(30, 4), mask=torch.zeros(30, dtype=torch.bool))
    vq.update_()
    assert vq.updates.item() == 2
    assert not torch.equal(vq.hits, before)


# Counting


def test_hits_are_averaged_shares_of_the_mean():
    vq = place(SoftVQ(4, 1, revival=None), torch.arange(4.0)[:, None]).train()
    vq(torch.tensor([[0.0]] * 6 + [[1.0]] * 2))
    vq.update_()
    share = torch.tensor([6.0, 2.0, 0.0, 0.0]) / 8 * 4
    torch.testing.assert_close(vq.hits, 0.9 * torch.ones(4) + 0.1 * share)
    assert vq(torch.zeros(1, 1)).stats["dead_codes"].item() == 0


def test_dead_codes_are_those_under_the_threshold():
    vq = place(SoftVQ(4, 1), torch.arange(4.0)[:, None])
    vq.hits.copy_(torch.tensor([0.0, 0.19, 0.21, 3.0]))
    assert vq.eval()(torch.zeros(1, 1)).stats["dead_codes"].item() == 2


@pytest.mark.filterwarnings("ignore::softvq.CodebookWarning")  # two of the codes are equal
def test_distinct_codes_are_refreshed_every_hundred_updates():
    vq = place(SoftVQ(4, 1, revival=None), torch.tensor([[-1.0], [0.0], [1.0], [1.0]])).train()
    seen = []
    for updates in (0, 1, 99, 100):
        vq.updates.fill_(updates)
        vq.distinct.fill_(-1)
        vq(waves(30, 1))
        vq.update_()
        seen.append(vq.distinct.item())
    assert seen == [3, -1, -1, 3]


# Looking codes up


@pytest.mark.parametrize(
    ("layout", "indices", "expected"),
    [
        ("channels_last", (), (4,)),
        ("channels_last", (7,), (7, 4)),
        ("channels_last", (2, 3, 5), (2, 3, 5, 4)),
        ("channels_last", (0,), (0, 4)),
        ("channels_first", (7,), (7, 4)),
        ("channels_first", (2, 3, 5), (2, 4, 3, 5)),
        ("channels_first", (2, 0), (2, 4, 0)),
    ],
)
def test_codes_are_laid_out_as_the_input_was(layout, indices, expected):
    vq = SoftVQ(16, 4, layout=layout)
    assert vq.codes(torch.zeros(indices, dtype=torch.int64)).shape == expected


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8], ids=str)
def test_codes_takes_whole_numbers_of_any_width(vq, dtype):
    indices = torch.tensor([0, 15, 3])
    assert torch.equal(vq.codes(indices.to(dtype)), vq.codes(indices))


def test_codes_of_a_learned_codebook_carry_a_gradient():
    vq = SoftVQ(16, 4)
    vq.codes(torch.tensor([3, 3])).sum().backward()
    assert vq.codebook.grad.sum(-1).nonzero().flatten().tolist() == [3]


def test_repr_names_what_matters(vq):
    assert "num_codes=16, dim=4, layout='channels_last'" in repr(vq)


# Other processes, other modes of torch


def measure(vq):
    """In a worker: what came out of the pickle is the quantizer that went in."""
    out = vq.eval()(waves(20, 4))
    return out.indices.tolist(), vq.is_started, vq.updates.item()


def test_it_pickles_to_a_spawned_worker():
    quantizers = [start_on(kind(16, 4), waves(64, 4)) for kind in (SoftVQ, HardVQ)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        there = list(pool.map(measure, quantizers, timeout=60))
    assert there == [measure(vq) for vq in quantizers]


@pytest.mark.parametrize("kind", [SoftVQ, HardVQ])
def test_a_pass_in_inference_mode_is_no_trap(kind):
    vq = kind(16, 4).train()
    with torch.inference_mode():
        vq(waves(64, 4))
        vq(waves(64, 4))
    vq.update_()
    out = vq(waves(64, 4).requires_grad_())
    (out.loss + out.quantized.sum()).backward()
    vq.update_()
    assert vq.updates.item() == 2


def test_no_warning_on_the_quiet_path(vq):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            vq(waves(64, 4))
            vq.update_()
    assert caught == []
