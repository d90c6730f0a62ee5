import pytest
import torch

from softvq import SoftVQ, Temperature
from softvq.explain import PrototypeNeighbours
from tests.contracts.quantizer import waves

ABSOLUTE = Temperature(gradient=0.5, prototypes=0.3, unit="absolute", warmup_share=0.0)


@pytest.fixture
def head():
    vq = SoftVQ(4, 3, temperature=ABSOLUTE)
    vq(waves(60, 3))
    return vq.eval()


def test_neighbours_over_batches_are_those_of_all_at_once(head):
    z, mask = waves(9, 5, 3, phase=1.0), waves(9, 5, phase=2.0) > -0.8
    mask[4] = False
    found = PrototypeNeighbours(head, num=3)
    for start in (0, 2, 6):
        stop = {0: 2, 2: 6, 6: 9}[start]
        found.update(z[start:stop], mask=mask[start:stop])
    distances = (z.double()[:, :, None] - head.codebook.double()).square().sum(-1)
    for k, each in enumerate(found.tokens()):
        mine = torch.where(mask, distances[..., k], torch.inf).flatten()
        order = mine.argsort()[:3].tolist()
        assert [(n.item, n.position) for n in each] == [divmod(place, 5) for place in order]
        torch.testing.assert_close(
            torch.tensor([n.distance for n in each]), mine[order].float(), rtol=1e-4, atol=1e-5
        )


def test_inputs_are_ranked_by_the_share_of_the_prototype(head):
    z = waves(6, 5, 3, phase=1.0)
    found = PrototypeNeighbours(head, num=2)
    found.update(z)
    distances = (z[:, :, None] - head.codebook).square().sum(-1)
    shares = torch.softmax(-distances / 0.5, -1).mean(1)
    for k, each in enumerate(found.inputs()):
        assert [item for item, _ in each] == shares[:, k].argsort(descending=True)[:2].tolist()
        torch.testing.assert_close(
            torch.tensor([share for _, share in each]),
            shares[:, k].sort(descending=True).values[:2],
        )


def test_masked_tokens_are_nobodys_neighbours(head):
    z = head.codebook.detach()[None].clone()
    mask = torch.tensor([[False, True, True, True]])
    found = PrototypeNeighbours(head, num=4)
    found.update(z, mask=mask)
    assert all(len(each) == 3 for each in found.tokens())
    assert all(n.position != 0 for each in found.tokens() for n in each)


@pytest.mark.bad_input
def test_tokens_of_other_size_are_refused(head):
    with pytest.raises(ValueError, match="tokens must have 3 features"):
        PrototypeNeighbours(head).update(torch.zeros(1, 2, 4))
