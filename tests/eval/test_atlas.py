import itertools

import numpy as np
import pytest
import torch

from eval.atlas import MOST_CODES, draw_atlas, find_neighbours, join_cells, lay_out, pick_codes
from softvq.data import to_model_range
from train.patches import Patches


def make_vectors(count, dim):
    """Points without pattern, by a formula."""
    place = torch.arange(count * dim, dtype=torch.float32).reshape(count, dim)
    return torch.sin(place * 12.9898) + torch.cos(place * place * 0.37)


def make_stored(count, *, most=MOST_CODES):
    """What a comparison keeps of ``count`` codes: code i is taken i times and has the grey i."""
    greys = torch.arange(count).remainder(256).byte()[:, None, None, None].expand(-1, 3, 2, 2)
    counts = torch.arange(count)
    patches = Patches(to_model_range(greys), torch.arange(count), 10)
    parts = pick_codes(patches, counts, make_vectors(count, 5), most=most)
    return {"m/counts": counts, **{f"m/{part}": tensor for part, tensor in parts.items()}}


def test_every_cell_shows_its_own_code():
    atlas = draw_atlas(make_stored(30), "m")
    assert sorted(atlas.codes) == list(range(30))
    assert atlas.counts == atlas.tokens == atlas.codes
    assert (atlas.columns, atlas.num_codes, atlas.total) == (6, 30, 435)
    cells = atlas.sprite[::2, ::2].reshape(-1, 4)[:30]
    assert cells[:, 0].tolist() == [code if code else 0 for code in atlas.codes]
    assert [bool(alpha) for alpha in cells[:, 3]] == [code > 0 for code in atlas.codes]


def test_neighbours_are_the_nearest_by_a_plain_loop():
    vectors = make_vectors(30, 5)
    atlas = draw_atlas(make_stored(30), "m")
    points = vectors.double().numpy()
    for cell, code in enumerate(atlas.codes):
        far = ((points - points[code]) ** 2).sum(1)
        nearest = [other for other in np.argsort(far, kind="stable") if other != code][:5]
        assert [atlas.codes[each] for each in atlas.near[cell]] == nearest


def test_rows_follow_the_first_principal_component_and_places_the_second():
    vectors = make_vectors(30, 5)
    points = vectors.double().numpy() - vectors.double().numpy().mean(0)
    axes = np.linalg.svd(points)[2]
    order = lay_out(vectors, torch.zeros(30), columns=6)
    rows = [order[begin : begin + 6].numpy() for begin in range(0, 30, 6)]
    first = [points[row] @ axes[0] for row in rows]
    up = 1 if first[0].mean() < first[-1].mean() else -1
    ends = [((up * row).min(), (up * row).max()) for row in first]
    for (_, high), (low, _) in itertools.pairwise(ends):
        assert high <= low
    slopes = np.array([np.diff(points[row] @ axes[1]) for row in rows])
    assert (slopes >= 0).all() or (slopes <= 0).all()


def test_the_bright_codes_are_at_the_top_whatever_the_sign_of_an_axis():
    vectors = make_vectors(30, 5)
    for sign in (1, -1):
        order = lay_out(vectors, sign * vectors[:, 0], columns=6)
        brightness = (sign * vectors[:, 0])[order]
        assert brightness[:12].mean() > brightness[-12:].mean()


def test_large_codebooks_keep_their_most_frequent_codes():
    stored = make_stored(40, most=9)
    assert stored["m/codes"].tolist() == list(range(31, 40))
    assert stored["m/vectors"].shape == (9, 5)
    atlas = draw_atlas(stored, "m")
    assert sorted(atlas.codes) == list(range(31, 40))
    assert (atlas.num_codes, atlas.total) == (40, 780)


def test_a_whole_large_codebook_stays_small():
    stored = make_stored(8192)
    assert len(stored["m/codes"]) == MOST_CODES
    assert draw_atlas(stored, "m").sprite.shape == (64, 64, 4)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_codes_have_few_neighbours(count):
    atlas = draw_atlas(make_stored(3, most=count), "m")
    assert [len(near) for near in atlas.near] == count * [count - 1]


def test_codes_of_one_feature_have_a_map():
    assert lay_out(torch.tensor([[2.0], [0.0], [1.0]]), torch.zeros(3), columns=2).shape == (3,)
    assert find_neighbours(torch.tensor([[2.0], [0.0], [0.9]]), most=1).tolist() == [[2], [2], [1]]


def test_a_diverged_codebook_has_a_map():
    vectors = torch.full((4, 3), torch.nan)
    patches = Patches(torch.zeros(4, 1, 2, 2), torch.zeros(4).long(), 1)
    parts = pick_codes(patches, torch.tensor([4, 0, 0, 0]), vectors)
    stored = {"m/counts": torch.tensor([4, 0, 0, 0])}
    stored |= {f"m/{part}": tensor for part, tensor in parts.items()}
    assert sorted(draw_atlas(stored, "m").codes) == [0, 1, 2, 3]


def test_cells_that_were_never_seen_are_clear():
    cells = join_cells(
        torch.full((3, 1, 2, 2), 9).byte(), torch.tensor([True, False, True]), columns=2
    )
    assert cells[::2, ::2, 3].tolist() == [[255, 0], [255, 0]]
    assert cells[0, 0].tolist() == [9, 9, 9, 255]
