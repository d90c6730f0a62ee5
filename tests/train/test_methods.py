import math

import pytest
import torch

from eval.results import HARD_MEASURES, SOFT_MEASURES
from softvq.data import to_model_range
from softvq.models import VQVAE
from train.build import build_model
from train.loop import Run
from train.methods import ADDITIONS, METHODS, STAGES, get_method
from train.order import BatchOrder

SOFT = {"softvq", "softvq-hard", *ADDITIONS}
RESIDUAL = {"softvq-residual", "lucid-residual"}
# Steps between the first and the last of the ablation are the same class: what they are made of
# is looked at, not each trained.
BETWEEN = set(ADDITIONS) - {"ddcl-literal", "ddcl-two"}


@pytest.fixture(scope="module", params=[name for name in METHODS if name not in BETWEEN])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def trained(make_config, images, name):
    """A finished run of two steps."""
    config = make_config("optim.steps=2", "log_every=1", method=name)
    run = Run(config, images=images, quiet=True)
    run.train()
    return run


def test_it_trains_and_has_every_measure(trained, name):
    result = trained.result
    assert [(each["step"], each["images"]) for each in result.evals] == [(0, 0), (1, 16), (2, 32)]
    for_all = [
        key for each in result.evals for key in HARD_MEASURES if not math.isfinite(each[key])
    ]
    assert for_all == []
    soft = [[each[key] is not None for key in SOFT_MEASURES] for each in result.evals]
    assert soft == 3 * [len(SOFT_MEASURES) * [name in SOFT]]
    assert [each["step"] for each in result.losses] == [1, 2]
    assert result.counts.sum() == 24 * 64
    assert result.counts.shape == (trained.config.net.num_codes,)
    for stage in range(STAGES if name in RESIDUAL else 0):
        assert 0 < result.evals[-1][f"use_hard_stage{stage}"] <= 1
        assert result.evals[-1][f"perplexity_hard_stage{stage}"] >= 1


def test_its_measures_are_possible(trained):
    final, num_codes = trained.result.evals[-1], trained.config.net.num_codes
    first = final.get("use_hard_stage0", final["use_hard"])  # counts are of the first stage
    assert 5 < final["psnr_hard_of_mean"] <= final["psnr_hard"] < 40
    assert first == (trained.result.counts > 0).double().mean().item()
    assert 0 < final["use_hard"] <= first
    assert 1 <= final["perplexity_hard"] <= num_codes * final["use_hard"] * (1 + 1e-6)
    assert 1 <= final["distinct_codes"] <= num_codes
    assert 0 < final["seconds"] < 60


def test_its_codes_are_what_it_decodes(trained, name):
    model = trained.result.model.eval()
    images = to_model_range(trained.images.test.batch(torch.arange(6)))[:, :, :20]  # 5 x 8 codes
    with torch.no_grad():
        reconstruction, out = model(images)
        tail = (STAGES,) if name in RESIDUAL else ()
        assert out.indices.shape == (6, 5, 8, *tail)
        assert out.indices.dtype == torch.int64
        codes = model.quantizer.codes(out.indices)
        torch.testing.assert_close(codes, out.quantized, rtol=0, atol=1e-5)
        torch.testing.assert_close(model.decode(out.indices), reconstruction, rtol=0, atol=1e-5)


def test_evaluation_leaves_it_as_it_is(trained):
    model = trained.result.model
    before = {name: each.clone() for name, each in model.state_dict().items()}
    model.eval()
    with torch.no_grad():
        model(to_model_range(trained.images.test.batch(torch.arange(6))))
    after = model.state_dict()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


def test_every_weight_of_the_net_has_moved(trained):
    fresh = build_model(trained.config, trained.images.train).state_dict()
    after = trained.result.model.state_dict()
    net = [key for key in fresh if key.startswith(("encoder.", "decoder."))]
    assert [key for key in net if torch.equal(fresh[key], after[key])] == []


def test_it_starts_from_the_same_net(make_config, images, name):
    found = build_model(make_config(method=name), images.train).state_dict()
    expected = build_model(make_config(), images.train).state_dict()
    shared = [key for key in expected if key.startswith(("encoder.", "decoder."))]
    assert len(shared) > 20
    assert [key for key in shared if not torch.equal(found[key], expected[key])] == []


def test_it_sees_the_same_images(make_config, images, name, monkeypatch):
    seen = []
    net = VQVAE.latents

    def watch(model, batch):
        if model.training:
            seen.append(batch)
        return net(model, batch)

    monkeypatch.setattr(VQVAE, "latents", watch)
    config = make_config("optim.steps=3", "seed=2", method=name)
    Run(config, images=images, quiet=True).train()
    order = BatchOrder(64, 16, seed=2)
    expected = [images.train.batch(order.batch(step)) for step in (0, 0, 1, 2)]  # starts on one
    assert torch.equal(torch.stack(seen), to_model_range(torch.stack(expected)))


def test_two_runs_are_the_same(trained, make_config, name):
    again = Run(trained.config, images=trained.images, quiet=True).train().model.state_dict()
    first = trained.result.model.state_dict()
    assert [key for key in first if not torch.equal(first[key], again[key])] == []


def test_seeds_differ(make_config, images, name):
    configs = [make_config(f"seed={seed}", method=name) for seed in (0, 1)]
    one, two = (Run(config, images=images, quiet=True) for config in configs)
    assert not torch.equal(one.order.batch(0), two.order.batch(0))
    first, second = (run.result.model.encoder[0].weight for run in (one, two))
    assert not torch.equal(first, second)


def test_it_says_how_it_is_set(name):
    method = get_method(name)
    assert method.label
    assert len(method.how) > 5
    assert 0 < method.lr < 1


SIZES = [(name, *size) for name, method in METHODS.items() for size in method.sizes]


@pytest.mark.parametrize(("method", "num_codes", "dim"), SIZES)
def test_what_tuning_found_at_a_size_holds_there_alone(make_config, images, method, num_codes, dim):
    found, plain = get_method(method).sizes[num_codes, dim], get_method(method)
    size = (f"net.num_codes={num_codes}", f"net.dim={dim}")
    option, value = next(iter(found.options.items()))
    tuned = Run(make_config(*size, method=method), images=images, quiet=True)
    said = Run(
        make_config(*size, f"method.options.{option}=0.77", "method.lr=0.5", method=method),
        images=images,
        quiet=True,
    )
    elsewhere = (f"net.num_codes={num_codes}", f"net.dim={dim + 1}")
    other = Run(make_config(*elsewhere, method=method), images=images, quiet=True)
    texts = [str(vars(run.model.quantizer)) for run in (tuned, said, other)]
    expected = [f"{option}={each}" for each in (value, 0.77, plain.tuned[option][0])]
    assert [part in text for part, text in zip(expected, texts, strict=True)] == [True] * 3
    assert tuned.optimizer.param_groups[0]["full_lr"] == found.lr
    assert said.optimizer.param_groups[0]["full_lr"] == 0.5
    assert plain.at(num_codes, dim).tuned[option][0] == value
    assert len(plain.at(num_codes, dim).tuned[option]) == 3
    assert f"D = {dim}: " in plain.at(num_codes, dim).how
    assert plain.at(num_codes, dim + 1) is plain


@pytest.mark.parametrize(
    ("method", "option", "read"),
    [
        ("softvq", "beta=0.5", lambda q: q.loss.beta == 0.5),
        ("softvq", "gradient=1.5", lambda q: q.schedule.options.gradient == 1.5),
        ("softvq", "prototypes_start=0.7", lambda q: q.schedule.options.prototypes[0] == 0.7),
        ("softvq", "threshold=0.1", lambda q: q.revival.threshold == 0.1),
        ("softvq", "forward_value=soft", lambda q: q.forward_value == "soft"),
        ("ema", "commitment=0.5", lambda q: q.learning.commitment == 0.5),
        ("ema", "threshold=0.1", lambda q: q.revival.threshold == 0.1),
        ("lucid-ema", "commitment_weight=0.5", lambda q: q.inner.commitment_weight == 0.5),
        (
            "lucid-cosine",
            "dead_share=0.5",
            lambda q: q.inner._codebook.threshold_ema_dead_code == 16,
        ),
        ("lucid-lowdim", "codebook_dim=4", lambda q: q.inner.codebook.shape == (32, 4)),
        ("gumbel", "kl_weight=0.5", lambda q: q.kl_weight == 0.5),
        ("sq-vae", "temperature_end=0.3", lambda q: q.path == (1.0, 0.3)),
        ("ibq", "entropy_weight=0.5", lambda q: q.entropy_weight == 0.5),
        ("ddcl-literal", "revive=true", lambda q: q.revival is not None),
        ("softvq-residual", "beta=0.5", lambda q: q.parts[3].vq.loss.beta == 0.5),
        (
            "lucid-residual",
            "commitment_weight=0.5",
            lambda q: q.inner.layers[3].commitment_weight == 0.5,
        ),
        (
            "lucid-residual",
            "dead_share=0.5",
            lambda q: q.inner.layers[3]._codebook.threshold_ema_dead_code == 16,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_reach_the_quantizer(make_config, images, method, option, read):
    config = make_config(f"method.options.{option}", method=method)
    assert read(build_model(config, images.train).quantizer)


def find_differences(one, two):
    """Options that differ between two configs of a quantizer, those within parts by their path."""
    found = set()
    for key in one:
        if isinstance(one[key], dict) and isinstance(two[key], dict):
            found |= {f"{key}.{inner}" for inner in find_differences(one[key], two[key])}
        elif one[key] != two[key]:
            found.add(key)
    return found


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("ddcl-literal", "ddcl-entropy", {"temperature.gradient", "temperature.unit"}),
        ("ddcl-entropy", "ddcl-revival", {"revival"}),
        ("ddcl-revival", "ddcl-energy", {"loss.assignment_grad"}),
        ("ddcl-energy", "ddcl-usage", {"loss.use_entropy"}),
        (
            "ddcl-usage",
            "ddcl-two",
            {"temperature.gradient", "temperature.prototypes", "forward_value"},
        ),
        ("ddcl-two", "ddcl-rate", set()),
        ("ddcl-rate", "ddcl-blurred", {"forward_value"}),
        ("ddcl-blurred", "ddcl-one", {"temperature.gradient"}),
        ("ddcl-one", "ddcl-unit", {"loss.unit", "loss.weight"}),
        ("ddcl-unit", "softvq", {"temperature.warmup_share"}),
    ],
)
def test_each_step_of_the_ablation_adds_one_thing(make_config, images, before, after, expected):
    one, two = (
        build_model(make_config(method=name), images.train).quantizer.config()
        for name in (before, after)
    )
    assert find_differences(one, two) == expected
    rates = {name: METHODS[name].codebook_lr for name in (before, after)}
    assert (len(set(rates.values())) > 1) == (after in ("ddcl-rate", "ddcl-blurred"))


def test_the_literal_method_is_the_papers(make_config, images):
    vq = build_model(make_config(method="ddcl-literal"), images.train).quantizer
    options = vq.schedule.options
    assert (options.gradient, options.prototypes, options.unit) == ((0.5, 0.02), None, "variance")
    assert (vq.loss.assignment_grad, vq.loss.use_entropy) == ("full", 0.0)
    assert (vq.loss.weight, vq.loss.unit) == (0.25, "absolute")
    assert (vq.forward_value, vq.revival) == ("soft", None)


@pytest.mark.bad_input
@pytest.mark.parametrize("method", METHODS)
def test_an_option_it_does_not_take_is_refused(make_config, images, method):
    message = f"method.options .'colour': 3. do not fit method '{method}': .*'colour'"
    with pytest.raises(ValueError, match=message):
        build_model(make_config("method.options.colour=3", method=method), images.train)


@pytest.mark.bad_input
def test_an_unknown_method_lists_the_valid_ones():
    message = (
        "method is 'softvp'; valid are: softvq, softvq-hard, ste, ema, rotation, "
        "lucid-ema, lucid-rotation, lucid-simvq, lucid-fsq, lucid-lfq, lucid-diveq, "
        "lucid-cosine, lucid-lowdim, gumbel, sq-vae, ibq, ddcl-literal, ddcl-entropy, "
        "ddcl-revival, ddcl-energy, ddcl-usage, ddcl-two, ddcl-rate, ddcl-blurred, ddcl-one, "
        "ddcl-unit, softvq-residual, lucid-residual. "
        "Did you mean 'softvq'[?]"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        get_method("softvp")


@pytest.mark.bad_input
def test_a_codebook_size_that_is_no_power_of_two_is_refused_for_lfq(make_config, images):
    config = make_config("net.num_codes=500", method="lucid-lfq")
    with pytest.raises(ValueError, match="num_codes for LFQ must be a power of two; got 500"):
        build_model(config, images.train)


@pytest.mark.bad_input
def test_a_codebook_size_that_fsq_lacks_is_refused(make_config, images):
    config = make_config("net.num_codes=500", method="lucid-fsq")
    with pytest.raises(ValueError, match="num_codes for FSQ is '500'; valid are: 512, 1024, 4096"):
        build_model(config, images.train)
