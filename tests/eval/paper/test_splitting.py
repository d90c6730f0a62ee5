import torch

from eval.paper.clusters import cluster, score
from eval.paper.splitting import anneal, settle
from tests.contracts.quantizer import waves


def make_unbalanced():
    """A wide crowd and three small groups, far away and near each other."""
    sizes, centres = (400, 12, 12, 12), ((0.0, 0.0), (20.0, 0.0), (20.0, 5.0), (25.0, 2.5))
    parts = [
        torch.tensor(centre) + (1.0 if size > 100 else 0.2) * waves(size, 2, phase=float(place))
        for place, (size, centre) in enumerate(zip(sizes, centres, strict=True))
    ]
    return torch.cat(parts), torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))


def test_prototypes_go_where_the_variance_is_and_not_the_mass():
    """k-means halves the crowd, which lessens its error most; annealing finds the small groups."""
    rows, classes = make_unbalanced()
    centres = anneal(rows, 4)
    assert score(classes, torch.cdist(rows, centres).argmin(-1))["accuracy"] == 1.0
    means = cluster(rows, 4, method="k-means, 10 starts", seed=0, steps=0)
    assert score(classes, means.clusters)["accuracy"] < 0.9


def test_where_prototypes_settle_the_free_energy_is_flat():
    rows = waves(60, 3, dtype=torch.float64)
    level = torch.tensor(0.2, dtype=torch.float64)
    still = torch.tensor(1e-9, dtype=torch.float64)
    codes = settle(rows, waves(3, 3, phase=1.0, dtype=torch.float64), level, still=still)
    codes.requires_grad_()
    distances = (rows[:, None] - codes).square().sum(-1)
    energy = -level * torch.logsumexp(-distances / level, -1).mean()
    (gradient,) = torch.autograd.grad(energy, codes)
    assert gradient.abs().max() < 1e-6


def test_a_cell_without_variance_stays_whole():
    """Of two points each gets a prototype, and no cell of one point ever parts."""
    rows = torch.tensor([[-1.0], [1.0]]).repeat(8, 1)
    assert sorted(anneal(rows, 4).flatten().tolist()) == [-1.0, 1.0]


def test_rows_without_variance_have_one_prototype():
    assert anneal(torch.full((5, 2), 3.0), 2).tolist() == [[3.0, 3.0]]
