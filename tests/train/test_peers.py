from functools import partial

import pytest
import torch
from torch.testing import assert_close

from train import peers

MAKERS = {
    "lucid-ema": peers.lucid_ema,
    "lucid-rotation": peers.lucid_rotation,
    "lucid-simvq": peers.lucid_simvq,
    "lucid-fsq": peers.lucid_fsq,
    "lucid-lfq": peers.lucid_lfq,
    "lucid-diveq": peers.lucid_diveq,
    "lucid-cosine": peers.lucid_cosine,
    "lucid-lowdim": partial(peers.lucid_lowdim, codebook_dim=3),
}
SHAPES = {"as many rows as features": (2, 6, 6, 6), "any": (3, 6, 4, 5), "one": (1, 6, 1, 1)}


def make_latents(*shape):
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(float(count)) * 0.7).reshape(shape)


@pytest.fixture(params=MAKERS)
def peer(request):
    """Started on data, in eval mode."""
    torch.manual_seed(0)
    peer = MAKERS[request.param](num_codes=512, dim=6, rows=600)
    with torch.no_grad():
        peer(make_latents(6, 6, 10, 10))
    return peer.eval()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_codes_are_what_it_decodes(peer, shape):
    z = make_latents(*shape)
    with torch.no_grad():
        quantized, indices, loss, stats = peer(z)
        codes = peer.codes(indices)
    assert quantized.shape == codes.shape == shape
    assert indices.shape == (shape[0], *shape[2:])
    assert indices.dtype == torch.int64
    assert loss.shape == ()
    assert stats == {}
    assert_close(codes, quantized, rtol=0, atol=1e-5)


def test_it_holds_a_code_an_index(peer):
    assert peer.num_codes == 512
    assert len(peer.codebook) == 512
    assert peer.codebook.shape[1] == (3 if type(peer.inner).__name__ == "FSQ" else 6)
    assert not peer.codebook.requires_grad


def test_the_nearest_code_is_taken(peer):
    """But for FSQ, which rounds each feature, and whose codes are not in the rows' space."""
    z = make_latents(2, 6, 4, 5)
    with torch.no_grad():
        out = peer(z)
        if type(peer.inner).__name__ == "FSQ":
            assert_close(
                peer.codebook[out.indices],
                peer.inner.indices_to_level_indices(out.indices) / 4 - 1,
                rtol=0,
                atol=1e-5,
            )
            return
        rows, codebook = z.movedim(1, -1).reshape(-1, 6), peer.codebook
        if (
            type(peer.inner).__name__ in ("VectorQuantize", "LFQ")
            and peer.inner.codebook.shape[1] != 6
        ):
            # Rows and codes meet between the two maps.
            rows, codebook = peer.inner.project_in(rows), peer.inner.codebook
        distances = (rows.double()[:, None] - codebook.double()).square().sum(-1)
    chosen = distances.gather(1, out.indices.reshape(-1, 1))[:, 0]
    assert_close(chosen, distances.min(-1).values, rtol=1e-4, atol=1e-6)


def test_gradient_reaches_the_encoder(peer):
    z = make_latents(2, 6, 4, 5).requires_grad_()
    out = peer.train()(z)
    (out.quantized.square().sum() + out.loss).backward()
    assert torch.isfinite(z.grad).all()
    assert z.grad.any()


@pytest.mark.parametrize("codebook_dim", [3, 6])
def test_a_projected_codebook_gives_back_what_it_decodes(codebook_dim):
    torch.manual_seed(0)
    peer = peers.lucid_ema(num_codes=16, dim=6, rows=600, codebook_dim=codebook_dim)
    with torch.no_grad():
        peer(make_latents(6, 6, 10, 10))
        out = peer.eval()(make_latents(2, 6, 4, 5))
        assert_close(peer.codes(out.indices), out.quantized, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "commitment", "rotation", "learned"),
    [
        (peers.lucid_ema, 1.0, False, False),
        (peers.lucid_rotation, 0.05, True, False),
        (peers.lucid_diveq, 1.0, None, True),
    ],
    ids=["ema", "rotation", "diveq"],
)
def test_options_are_as_the_design_says(make, commitment, rotation, learned):
    inner = make(num_codes=16, dim=6, rows=640).inner
    assert inner.commitment_weight == commitment
    assert rotation in (None, inner.rotation_trick)
    assert inner.learnable_codebook is learned
    assert inner.directional_reparam is learned
    assert inner._codebook.threshold_ema_dead_code == pytest.approx(0.25 * 640 / 16)
    assert not inner._codebook.initted  # k-means is to come


@pytest.mark.bad_input
def test_without_the_package_a_peer_says_what_to_install(monkeypatch):
    monkeypatch.setattr(peers, "published", None)
    with pytest.raises(ValueError, match=r"need vector-quantize-pytorch: pip install 'softvq\[pee"):
        peers.lucid_ema(num_codes=8, dim=4, rows=16)
