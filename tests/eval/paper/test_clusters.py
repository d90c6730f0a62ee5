import itertools

import pytest
import torch

from eval.paper.clusters import METHODS, cluster, score
from tests.contracts.quantizer import waves


@pytest.fixture
def blobs():
    """Three groups that nobody can miss."""
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    return centres.repeat_interleave(20, 0) + 0.3 * waves(60, 2), torch.arange(3).repeat_interleave(
        20
    )


@pytest.mark.parametrize("method", METHODS)
def test_groups_far_apart_are_found(blobs, method):
    rows, classes = blobs
    found = cluster(rows, 3, method=method, seed=0, steps=30)
    assert score(classes, found.clusters)["accuracy"] == 1.0
    assert torch.equal(torch.cdist(rows, found.centres).argmin(-1), found.clusters)


def test_the_accuracy_is_that_of_the_best_of_all_matchings():
    classes = (waves(40) > 0).long() + (waves(40, phase=1.0) > 0.3).long()
    clusters = (waves(40, phase=2.0) > 0).long() + (waves(40, phase=3.0) > 0.3).long()
    best = max(
        float((torch.tensor(order)[clusters] == classes).float().mean())
        for order in itertools.permutations(range(3))
    )
    assert score(classes, clusters)["accuracy"] == pytest.approx(best)


def test_one_cluster_is_right_for_the_largest_class_alone():
    found = score(torch.tensor([0, 0, 0, 1]), torch.zeros(4, dtype=torch.int64))
    assert (found["accuracy"], found["nmi"], found["ari"]) == (0.75, 0.0, 0.0)


@pytest.mark.bad_input
def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="method is 'kmeans'; valid are"):
        cluster(torch.zeros(4, 2), 2, method="kmeans", seed=0, steps=1)
