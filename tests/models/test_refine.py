import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from softvq import HardVQ, SoftVQ
from softvq.models import VQVAE, Refined, VQVAEConfig, refine_indices
from softvq.models.refine import _Search
from softvq.nn import Cosine, Projected, ResidualVQ

SMALL = VQVAEConfig(hidden=8, residual_hidden=4, blocks=1, dim=6)


def squared_error(indices, images, table, decode):
    """In float64, of each picture."""
    with torch.no_grad():
        made = decode(table[indices].movedim(-1, 1).contiguous())
    return (made.double() - images.double()).square().sum((1, 2, 3))


def make_problem(seed, *, batch=3, grid=(5, 4), num_codes=16, dim=4, channels=2):
    """Codes, pictures, and a net that sees further than the window of a position."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(dim, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 5, padding=2),
            nn.ReLU(),
            nn.ConvTranspose2d(8, channels, 4, 4),
        )
    table = torch.randn(num_codes, dim, generator=generator)
    images = torch.randn(batch, channels, 4 * grid[0], 4 * grid[1], generator=generator)
    indices = torch.randint(num_codes, (batch, *grid), generator=generator)
    return indices, images, table, net


@given(
    seed=st.integers(0, 10_000),
    batch=st.integers(1, 4),
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    num_codes=st.integers(1, 40),
    dim=st.integers(1, 6),
    sweeps=st.integers(0, 3),
)
def test_no_picture_gets_worse(seed, batch, height, width, num_codes, dim, sweeps):
    indices, images, table, decode = make_problem(
        seed, batch=batch, grid=(height, width), num_codes=num_codes, dim=dim
    )
    given_indices = indices.clone()
    found = refine_indices(indices, images, table=table, decode=decode, sweeps=sweeps)
    assert torch.equal(indices, given_indices)
    assert found.dtype == torch.int64
    assert found.shape == indices.shape
    assert ((found >= 0) & (found < num_codes)).all()
    before = squared_error(indices, images, table, decode)
    assert (squared_error(found, images, table, decode) <= before * (1 + 1e-5)).all()


def test_random_codes_come_near_the_best_of_all():
    """Of one row of three positions, each of the 512 triples of codes is tried by the oracle."""
    total, best, start = 0.0, 0.0, 0.0
    for seed in range(8):
        indices, _, table, decode = make_problem(seed, batch=1, grid=(1, 3), num_codes=8)
        with torch.no_grad():
            vectors = torch.randn(1, 4, 1, 3, generator=torch.Generator().manual_seed(seed))
            images = decode(3 * vectors)
        triples = torch.cartesian_prod(*3 * [torch.arange(8)])[:, None]
        errors = squared_error(triples, images.expand(512, -1, -1, -1), table, decode)
        found = refine_indices(indices, images, table=table, decode=decode, sweeps=8)
        best += errors.min().item()
        start += squared_error(indices, images, table, decode).item()
        total += squared_error(found, images, table, decode).item()
    assert best <= total < best + 0.15 * (start - best)


def test_positions_that_do_not_touch_each_get_the_code_that_decodes_best():
    """E is a quadratic here, and the best code the one whose own patch is nearest, by hand."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(32, 4, generator=generator)
    decode = nn.ConvTranspose2d(4, 3, 2, 2)
    with torch.no_grad():
        decode.weight.copy_(torch.randn(4, 3, 2, 2, generator=generator))
    images = 3 * torch.randn(2, 3, 12, 12, generator=generator)
    with torch.no_grad():
        patches = decode(table.mT[None, :, :, None])  # (1, 3, 64, 2): a code every two rows
    patches = patches.unflatten(2, (32, 2))[0].permute(1, 0, 2, 3).flatten(1).double()
    cells = images.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(3).double()
    best = torch.cdist(cells.flatten(0, 2), patches).argmin(-1).view(2, 6, 6)
    start = torch.randint(32, (2, 6, 6), generator=generator)
    found = refine_indices(start, images, table=table, decode=decode, sweeps=12)
    assert (start == best).double().mean() < 0.1
    assert (found == best).double().mean() > 0.97


def test_most_of_what_there_is_to_gain_comes_with_the_first_sweep():
    """From the codes nearest to vectors that the pictures were made of."""
    shares = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        _, _, _, net = make_problem(seed, dim=6, channels=3)
        table, truth = (
            3 * torch.randn(size, generator=generator) for size in ((64, 6), (8, 6, 8, 8))
        )
        indices = torch.cdist(truth.movedim(1, -1), table).argmin(-1)
        with torch.no_grad():
            images = net(truth)
        start = squared_error(indices, images, table, net).sum()
        found = [
            refine_indices(indices, images, table=table, decode=net, sweeps=sweeps)
            for sweeps in (1, 4)
        ]
        shares.append([(squared_error(f, images, table, net).sum() / start).item() for f in found])
    first, fourth = (sum(each) / 3 for each in zip(*shares, strict=True))
    assert first < 0.63
    assert fourth < 0.46


def test_a_picture_is_searched_alone_and_always_the_same():
    indices, images, table, decode = make_problem(5, batch=4)
    together = refine_indices(indices, images, table=table, decode=decode, sweeps=2)
    state = torch.get_rng_state()
    alone = [
        refine_indices(indices[i : i + 1], images[i : i + 1], table=table, decode=decode, sweeps=2)
        for i in range(4)
    ]
    assert torch.equal(torch.cat(alone), together)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(together, indices)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_it_works_in_every_mode_and_leaves_the_decoder_alone(mode):
    indices, images, table, decode = make_problem(6)
    expected = refine_indices(indices, images, table=table, decode=decode)
    with mode():
        found = refine_indices(indices.clone(), images.clone(), table=table + 0, decode=decode)
    assert torch.equal(found, expected)
    assert not found.is_inference()
    assert [each.grad for each in decode.parameters()] == 6 * [None]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_picture_that_is_not_finite_keeps_its_codes(value):
    indices, images, table, decode = make_problem(7)
    clean = refine_indices(indices, images, table=table, decode=decode)
    images[1, 0, 3, 2] = value
    found = refine_indices(indices, images, table=table, decode=decode)
    assert torch.equal(found[1], indices[1])
    assert torch.equal(found[[0, 2]], clean[[0, 2]])


def test_a_decoder_that_ignores_the_codes_changes_nothing():
    indices, images, table, _ = make_problem(8)

    def decode(codes):
        blank = torch.zeros(len(codes), 2, 20, 16)
        return blank + 0 * codes.sum()

    assert torch.equal(refine_indices(indices, images, table=table, decode=decode), indices)


def test_no_pictures_give_no_indices():
    indices, images, table, decode = make_problem(9)
    assert refine_indices(indices[:0], images[:0], table=table, decode=decode).shape == (0, 5, 4)
    assert torch.equal(
        refine_indices(indices, images, table=table, decode=decode, sweeps=0), indices
    )


QUANTIZERS = {
    "soft": lambda: SoftVQ(32, 6, layout="channels_first"),
    "hard": lambda: HardVQ(32, 6, layout="channels_first"),
    "projected": lambda: Projected(Cosine(SoftVQ(32, 3)), dim=6, layout="channels_first"),
}


def build(name, images):
    """An untrained model whose codes lie on the latents of pictures."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = VQVAE(QUANTIZERS[name](), SMALL)
    with torch.no_grad():
        model(images)  # places the codes
    return model.eval()


@pytest.mark.parametrize("size", [(16, 20), (13, 30), (4, 3), (1, 1)])
@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_model_decodes_refined_tokens_better(make_images, name, size):
    images = make_images(4, 3, *size)
    model = build(name, make_images(4, 3, 32, 32, phase=1.0))
    before = model.encode(images)
    errors = [
        (model.decode(indices, size=size) - images).double().square().sum((1, 2, 3)).detach()
        for indices in (
            before,
            Refined(model).encode(images),
            Refined(model, sweeps=4).encode(images),
        )
    ]
    assert (errors[1] <= errors[0] * (1 + 1e-5)).all()
    assert errors[1].sum() < errors[0].sum()
    assert errors[2].sum() <= errors[1].sum() * (1 + 1e-5)
    assert torch.equal(Refined(model).decode(before, size=size), model.decode(before, size=size))
    assert torch.equal(model.encode(images), before)


def test_sweeps_tell_two_models_apart():
    model = VQVAE(QUANTIZERS["soft"](), SMALL).eval()
    one, two = (Refined(model, sweeps=sweeps).state_dict() for sweeps in (1, 2))
    assert [key for key in one if not torch.equal(one[key], two[key])] == ["sweeps"]


@pytest.mark.bad_input
def test_training_mode_is_refused(make_images):
    model = VQVAE(QUANTIZERS["hard"](), SMALL)
    refined = Refined(model)
    with pytest.raises(
        ValueError, match=r"^model \(VQVAE\) is in training mode.*call model.eval\(\)"
    ):
        refined.encode(make_images(1, 3, 8, 8))
    model.eval()
    refined.encode(make_images(1, 3, 8, 8))
    assert not refined.training
    model.decoder.train()
    with pytest.raises(ValueError, match=r"model.decoder \(Sequential\) is in training mode"):
        refined.encode(make_images(1, 3, 8, 8))


def test_modes_of_the_models_parts_are_left():
    model = VQVAE(QUANTIZERS["hard"](), SMALL).train()
    model.encoder.eval()
    Refined(model)
    assert (model.training, model.encoder.training, model.decoder.training) == (True, False, True)


@pytest.mark.bad_input
def test_several_indices_a_vector_are_refused(make_images):
    stages = [HardVQ(8, 6, seed=stage) for stage in range(2)]
    model = VQVAE(ResidualVQ(stages, layout="channels_first"), SMALL).eval()
    with pytest.raises(ValueError, match="ResidualVQ gives a vector several indices"):
        Refined(model)


@pytest.mark.bad_input
@pytest.mark.parametrize("sweeps", [0, -1, 1.5])
def test_sweeps_must_be_a_count(sweeps):
    with pytest.raises((ValueError, TypeError), match="sweeps"):
        Refined(VQVAE(QUANTIZERS["hard"](), SMALL), sweeps=sweeps)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": torch.zeros(3, 20, dtype=torch.int64)}, "indices must be .B, h, w."),
        ({"table": torch.zeros(16)}, "table .K, D."),
        ({"indices": torch.full((3, 5, 4), 16)}, "indices must lie in .0, 16"),
        ({"indices": torch.full((3, 5, 4), -1)}, "indices must lie in .0, 16"),
        ({"indices": torch.zeros(3, 5, 4)}, "indices must be whole numbers"),
        ({"images": torch.zeros(2, 2, 20, 16)}, r"pictures like images, \(2, 2, 20, 16\), but for"),
        ({"images": torch.zeros(3, 2, 20, 17)}, r"a block of pixels for each position of 5 x 4"),
        ({"images": torch.zeros(3, 2, 16, 16)}, r"a block of pixels for each position of 5 x 4"),
        ({"images": torch.zeros(3, 20, 16)}, r"images must be \(B, C, H, W\); got \(3, 20, 16\)"),
        ({"table": torch.zeros(16, 4, dtype=torch.int64)}, "table must be a floating-point tensor"),
        ({"table": torch.full((16, 4), float("nan"))}, "table"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    indices, images, table, decode = make_problem(0)
    arguments = {"indices": indices, "images": images, "table": table, **change}
    with pytest.raises(ValueError, match=message):
        refine_indices(
            arguments["indices"], arguments["images"], table=arguments["table"], decode=decode
        )


@pytest.mark.bad_input
def test_a_decoder_without_gradient_is_refused():
    indices, images, table, decode = make_problem(0)
    with pytest.raises(ValueError, match="decode gives pictures without a gradient"):
        refine_indices(indices, images, table=table, decode=torch.no_grad()(decode))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32])
def test_indices_of_any_whole_type_are_taken(dtype):
    indices, images, table, decode = make_problem(1)
    expected = refine_indices(indices, images, table=table, decode=decode)
    found = refine_indices(
        indices.to(dtype), images.requires_grad_(), table=table.requires_grad_(), decode=decode
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_models_of_other_dtypes(make_images, dtype):
    images = make_images(4, 3, 32, 32).to(dtype)
    model = build("soft", make_images(4, 3, 32, 32, phase=1.0)).to(dtype)
    errors = [
        (model.decode(each.encode(images)).double() - images.double()).square().sum().item()
        for each in (model, Refined(model))
    ]
    assert errors[1] < errors[0]


@pytest.mark.bad_input
def test_models_that_do_not_fit_are_refused():
    model = VQVAE(QUANTIZERS["hard"](), SMALL)
    for other in (nn.Linear(1, 1), Refined(model)):
        with pytest.raises(
            ValueError, match=r"model must be a softvq.models.VQVAE.*refine_indices"
        ):
            Refined(other)
    model.quantizer.num_codes = 2**24 + 1
    with pytest.raises(ValueError, match="HardVQ has 16,777,217 codes"):
        Refined(model)


@pytest.mark.bad_input
@pytest.mark.parametrize("decode", [lambda codes: (codes,), lambda codes: codes * float("nan")])
def test_decoders_that_do_not_fit_are_refused(decode):
    indices, _, table, _ = make_problem(0)
    with pytest.raises(ValueError, match=r"decode.*(one tensor|diverged)"):
        refine_indices(indices, torch.zeros(3, 4, 5, 4), table=table, decode=decode)


def test_another_default_device_changes_nothing():
    indices, images, table, decode = make_problem(3)
    expected = refine_indices(indices, images, table=table, decode=decode)
    with torch.device("meta"):
        assert torch.equal(refine_indices(indices, images, table=table, decode=decode), expected)


@pytest.mark.parametrize(("height", "width"), [(24, 24), (17, 23), (20, 17)])
def test_each_position_owns_its_block_of_a_cropped_picture(height, width):
    """Blocks of 8 pixels: ceil(17 / 3) = 6 would be the wrong block. By hand, pixel by pixel."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(16, 3, generator=generator)
    images = torch.randn(2, 3, height, width, generator=generator)
    indices = torch.randint(16, (2, 3, 3), generator=generator)

    def decode(codes):
        return nn.functional.interpolate(codes, scale_factor=8)

    expected = torch.zeros(2, 3, 3)
    for row in range(height):
        for column in range(width):
            made = table[indices[:, row // 8, column // 8]]
            error = (made - images[:, :, row, column]).square().sum(1)
            expected[:, row // 8, column // 8] += error
    assert torch.allclose(_Search(indices, images, table, decode=decode).error, expected)
