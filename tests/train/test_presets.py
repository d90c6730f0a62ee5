import pytest

from train.build import build_model
from train.presets import PRESETS, make_preset


class Empty:
    """What `build_model` asks of a training set."""

    channels, size = 3, (32, 32)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_builds_and_says_its_name(name):
    config = make_preset(name)
    assert config.preset == name
    model = build_model(config, Empty())
    assert model.quantizer.codebook.shape == (config.net.num_codes, config.net.dim)
    assert config.eval_steps()[0] == 0
    assert config.eval_steps()[-1] == config.optim.steps


def test_the_reference_preset_is_the_budget_of_the_claims():
    config = make_preset("reference")
    assert (config.optim.steps, config.optim.batch_size, config.net.hidden) == (2000, 64, 64)
    assert (config.net.num_codes, config.net.dim, config.net.downsampling) == (512, 64, 4)
    assert (config.data.source, config.data.num_train, config.data.num_test) == (
        "cifar10",
        None,
        None,
    )
    assert config.eval_at == (0.0, 0.125, 0.25, 0.5, 1.0)


def test_the_full_preset_sees_the_images_a_hundred_times():
    config = make_preset("full")
    assert config.net.hidden == 128
    images = config.optim.steps * config.optim.batch_size
    assert images == pytest.approx(100 * 50_000, rel=1e-3)


def test_the_smoke_preset_needs_no_data_of_others():
    assert make_preset("smoke").data.source == "textures"


@pytest.mark.bad_input
def test_an_unknown_preset_lists_the_valid_ones():
    message = (
        "preset is 'quik'; valid are: quick, reference, public, full, smoke. Did you mean 'quick'?"
    )
    with pytest.raises(ValueError, match=f"^{message.replace('?', '[?]')}$"):
        make_preset("quik")
