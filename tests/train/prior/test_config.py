import pytest

from train.prior.config import PriorConfig
from train.values import override, read_config, to_json


def test_values_are_replaced_by_their_paths():
    config = override(PriorConfig(), ["net.layers=6", "lr=1e-3", "eval_at=[0.5,1.0]"])
    assert (config.net.layers, config.optim.lr, config.eval_at) == (6, 1e-3, (0.5, 1.0))


def test_json_gives_the_same_back():
    config = override(PriorConfig(), ["drop_labels=0.2", "net.from_codebook=true"])
    assert read_config(to_json(config), PriorConfig) == config


def test_each_step_is_measured_once():
    config = override(PriorConfig(), ["optim.steps=2", "eval_at=[0.4,0.5,1.0]"])
    assert config.eval_steps() == [1, 2]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("net.layers=0", "net.layers must be a whole number of at least 1; got 0"),
        ("net.width=30", "net.width must be a multiple of net.heads, 4; got 30"),
        ("net.dropout=1", "net.dropout must be"),
        ("optim.lr=0", "optim.lr must be a finite number > 0"),
        ("optim.steps=0", "optim.steps must be"),
        ("optim.decay_from=2", "optim.decay_from must be"),
        ("drop_labels=1.5", "drop_labels must be a finite number >= 0 and <= 1; got 1.5"),
        ("seed=-1", "seed must be"),
        ("eval_at=[0.5]", r"eval_at must end at 1.0"),
        ("checkpoint_every=0", "checkpoint_every must be"),
        ("layer=3", "key is 'layer'; valid are: net.layers, .* Did you mean"),
        ("data=textures", "key is 'data'; valid are: net.layers"),
        ("method.options.x=1", "key is 'method.options.x'; valid are: net.layers"),
        ("conditional=maybe", "conditional: Input should be a valid boolean"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        override(PriorConfig(), [change])
