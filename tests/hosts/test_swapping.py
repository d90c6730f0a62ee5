import copy
import pickle

import pytest
import torch
from torch import nn

import softvq
from softvq import SoftVQ, attach, quantize_mode, restore, swap
from softvq.hosts.adapter import Swapped
from tests.hosts import kinds
from tests.hosts.contract import COOL, check_restore, check_swap, train_swapped
from tests.hosts.kinds import D, K, data, make


def quantizer(model):
    return model.quantize


def input_of(model):
    z = model.encoder(data()).detach()
    return z.movedim(-1, 1).contiguous() if model.first else z


def loss_of_batch(model):
    x = data()
    out, loss = model(x)
    return (out - x).square().mean() + loss


def hard_error(model):
    x = data()
    return (model(x)[0] - x).square().mean()


# Every family: swap, train, restore


@pytest.mark.parametrize("name", kinds.HOSTS)
def test_a_swap_changes_no_hard_answer_and_no_form(name):
    model = make(name).eval()
    check_swap(model, quantizer=quantizer, z=input_of(model))


@pytest.mark.parametrize("name", kinds.HOSTS)
def test_a_host_trains_while_swapped_and_is_itself_again(name):
    model, untouched = make(name), make(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    z = input_of(model)
    swap(model, temperature=COOL)
    before, after = train_swapped(
        model,
        lambda model: loss_of_batch(model) if model.training else hard_error(model),
        optimizer=optimizer,
    )
    assert after < before
    check_restore(model, untouched, quantizer=quantizer, z=z)


@pytest.mark.parametrize("name", kinds.HOSTS)
def test_restore_at_once_gives_back_every_bit(name):
    model, untouched = make(name), make(name)
    swap(model, temperature=COOL)
    restore(model)
    for one, other in zip(
        model.state_dict().values(), untouched.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", kinds.HOSTS)
def test_in_training_the_loss_reaches_encoder_and_codes(name):
    model = make(name)
    swap(model, temperature=COOL)
    loss_of_batch(model).backward()
    codes = model.quantize.softvq[0].parameter
    assert model.encoder.weight.grad.any()
    assert codes.grad.any()


@pytest.mark.parametrize("name", ["averages", "channels last"])
def test_averages_agree_with_the_trained_codes(name):
    """The host's next step of training must not throw the codes back to where they were."""
    model = make(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    swap(model, temperature=COOL)
    train_swapped(model, loss_of_batch, optimizer=optimizer)
    restore(model)
    host = model.quantize
    codes = host.embed.t() if name == "channels last" else host._embedding.weight
    sums = host.embed_avg.t() if name == "channels last" else host._ema_w
    counts = host.cluster_size if name == "channels last" else host._ema_cluster_size
    torch.testing.assert_close(sums / counts[:, None], codes.data, rtol=1e-4, atol=1e-5)


def test_values_of_the_tree_are_those_of_the_codes():
    model = make("one dict")
    swap(model, temperature=COOL)
    out = model.quantize.train()(input_of(model))
    codes, found = model.quantize.codes.data, out["encoding_indices"]
    torch.testing.assert_close(out["quantize"], codes[found])
    assert torch.equal(out["encodings"].argmax(-1), found.reshape(-1))
    assert torch.equal(out["distances"].argmin(-1), found.reshape(-1))
    counts = found.reshape(-1).bincount(minlength=K).double()
    share = counts / counts.sum()
    expected = torch.exp(-(share * (share + 1e-12).log()).sum())
    assert float(out["perplexity"]) == pytest.approx(float(expected), rel=1e-4)


# Modes


def test_quantize_mode_reaches_a_swapped_host():
    model = make("four").eval()
    z = input_of(model)
    swap(model, temperature=COOL)
    hard = model.quantize(z)
    with quantize_mode(model, "soft"):
        soft = model.quantize(z)
    assert not torch.allclose(soft[1], hard[1])
    assert [each.shape for each in soft] == [each.shape for each in hard]


# State dicts


def test_a_checkpoint_of_before_means_a_fresh_state():
    old = make("four", seed=1)
    model = make("four")
    swap(model, temperature=COOL)
    train_swapped(model, loss_of_batch, optimizer=torch.optim.Adam(model.parameters(), lr=1e-2))
    model.load_state_dict(old.state_dict(), strict=True)
    core = model.quantize.softvq[0]
    assert torch.equal(core.codebook, old.quantize._embedding.weight)
    assert (int(core.updates), core.is_started) == (0, False)


def test_a_checkpoint_of_a_swapped_model_resumes():
    model, twin = make("channels last"), make("channels last", seed=1)
    for each in (model, twin):
        swap(each, temperature=COOL)
    train_swapped(model, loss_of_batch, optimizer=torch.optim.Adam(model.parameters(), lr=1e-2))
    twin.load_state_dict(model.state_dict(), strict=True)
    core = twin.quantize.softvq[0]
    assert (int(core.updates), core.is_started) == (20, True)
    assert torch.equal(core.codebook, model.quantize.softvq[0].codebook)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_stand_on_their_own(duplicate):
    model = make("channels last")
    swap(model, temperature=COOL)
    twin = duplicate(model)
    with torch.no_grad():
        twin.quantize.embed.zero_()
    assert twin.quantize.softvq[0].codebook.abs().max() == 0
    assert model.quantize.embed.any()
    restore(twin)
    assert type(twin.quantize) is kinds.ChannelsLast


# What is kept


def test_dtype_device_mode_and_grad_are_kept():
    model = make("four").double().eval()
    model.quantize._embedding.weight.requires_grad_(False)
    report = swap(model, temperature=COOL)
    assert not model.quantize.softvq.training
    assert not model.quantize._embedding.weight.requires_grad
    assert any("stay frozen" in each for each in report.swapped[0].remarks)
    loss, quantized, *_ = model.train().quantize(input_of(make("four")).double())
    assert (loss.dtype, quantized.dtype) == (torch.float64, torch.float64)


def test_frozen_codes_do_not_move():
    model = make("four")
    model.quantize._embedding.weight.requires_grad_(False)
    before = model.quantize._embedding.weight.clone()
    swap(model, temperature=COOL)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train_swapped(model, loss_of_batch, optimizer=optimizer)
    assert torch.equal(model.quantize._embedding.weight, before)


def test_tied_and_repeated_references_see_the_swap():
    model = make("four")
    model.again = model.quantize
    model.others = [model.quantize]
    report = swap(model, temperature=COOL)
    assert len(report.swapped) == 1
    assert isinstance(model.again, Swapped)
    assert isinstance(model.others[0], Swapped)


def test_two_families_in_one_model():
    model = nn.ModuleList([make("four"), make("channels last")])
    report = swap(model, temperature=COOL)
    assert [each.family[0] for each in report.swapped] == ["B", "D"]
    assert report.added_parameters == ("1.quantize.embed",)


def test_a_bfloat16_host_is_swapped_as_it_is():
    model = make("four").bfloat16().eval()
    z = input_of(make("four")).bfloat16()
    before = model.quantize(z)
    swap(model, temperature=COOL)
    assert torch.equal(model.quantize(z)[1], before[1])
    assert model.quantize._embedding.weight.dtype == torch.bfloat16


def test_random_generators_are_left_alone():
    model = make("four")
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    swap(model, temperature=COOL)
    assert torch.equal(torch.randn(3), expected)


def test_memory_formats_and_strides_change_nothing():
    model = make("four")
    swap(model, temperature=COOL)
    z = input_of(model)
    plain = copy.deepcopy(model).quantize(z)
    last = copy.deepcopy(model).quantize(z.contiguous(memory_format=torch.channels_last))
    assert torch.equal(plain[1], last[1])
    assert plain[1].is_contiguous()


def test_restart_places_the_codes_on_data():
    model = make("four")
    before = model.quantize._embedding.weight.clone()
    swap(model, codes="restart", temperature=COOL)
    model(data())
    assert not torch.equal(model.quantize._embedding.weight, before)


def test_only_leaves_the_others():
    model = nn.ModuleList([make("four"), make("channels last")])
    report = swap(model, only=lambda name: name.startswith("1"))
    assert [each.name for each in report.swapped] == ["1.quantize"]
    assert not isinstance(model[0].quantize, Swapped)


def test_weight_averages_by_name_are_warned_about():
    model = make("channels last")
    model.ema = nn.Module()
    model.ema.m_name2s_name = {}
    with pytest.warns(UserWarning, match="ema averages weights.*quantize.embed.*anew"):
        swap(model, temperature=COOL)


# Optimizers


def test_an_optimizer_of_before_gets_codes_that_were_averages():
    model = make("channels last")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    swap(model, temperature=COOL)
    attach(model, optimizer)
    own = next(
        group for group in optimizer.param_groups if group["params"][0] is model.quantize.embed
    )
    assert own["lr"] == pytest.approx(1e-2)
    assert own["weight_decay"] == 0


def test_stale_moments_are_dropped():
    model = make("four")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_of_batch(model).backward()
    optimizer.step()
    codes = model.quantize._embedding.weight
    assert optimizer.state[codes]["exp_avg"].any()
    swap(model, temperature=COOL)
    attach(model, optimizer)
    assert not optimizer.state[codes]
    assert optimizer.state[model.encoder.weight]["exp_avg"].any()


# An adapter of one's own


class ProjectedAdapter(softvq.hosts.Adapter):
    """For `kinds.Projected`: trains the frozen table as codes of their own."""

    family = "SimVQ"

    def codebooks(self):
        return (softvq.hosts.CodebookAt(owner="embedding", name="weight"),)

    def rows(self, host, z):
        return [z], None

    def answer(self, host, z, *, outputs):
        out = outputs[0]
        return (out.quantized, torch.zeros(()), out.indices), (out.loss, out.loss.detach())


def test_an_adapter_takes_a_family_that_is_refused():
    model = nn.Sequential(nn.Linear(6, D), kinds.Projected())
    report = swap(
        model,
        temperature=COOL,
        adapter=lambda m: ProjectedAdapter() if isinstance(m, kinds.Projected) else None,
    )
    assert report.swapped[0].family == "SimVQ"
    (quantized, _, found), (loss, _) = model(data())
    assert quantized.shape == (8, 4, 5, D)
    assert found.shape == (8, 4, 5)
    assert loss.requires_grad
    assert restore(model) == ["1"]


# Bad input


def ddp_wrapped():
    wrapper = type("DistributedDataParallel", (nn.Module,), {})()
    wrapper.module = make("four")
    return wrapper


def swapped():
    model = make("four")
    swap(model, temperature=COOL)
    return model


def with_a_graph():
    model = make("four")
    model.last = model(data())[0]
    return model


def compiled_in_place():
    model = make("four")
    model.quantize.compile(backend="eager")
    return model


def patched():
    model = make("four")
    model.quantize.forward = model.quantize.forward
    return model


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("model", "match"),
    [
        (lambda: nn.Linear(2, 2), r"Linear\) holds no quantizer that was found"),
        (
            lambda: nn.Sequential(nn.Embedding(4, 4)),
            r"no quantizer that was found:\n  0 \(Embedding\): runs on none of the layouts",
        ),
        (lambda: nn.Sequential(kinds.Projected()), r"0 \(Projected\): returns family F"),
        (lambda: nn.Sequential(kinds.DotProduct()), r"0 \(DotProduct\): .*dot product"),
        (ddp_wrapped, r"wrapped \(DistributedDataParallel\).*swap before wrapping"),
        (lambda: torch.compile(make("four")), r"wrapped \(OptimizedModule\).*_orig_mod"),
        (compiled_in_place, "quantize is compiled in place: swap first"),
        (swapped, r"quantize is swapped already. Call softvq.restore"),
        (with_a_graph, "holds a tensor of a pass whose backward is to come"),
        (patched, "quantize has a forward of its own instance"),
        (lambda: 3, "model must be a torch.nn.Module; got int"),
    ],
    ids=[
        "linear",
        "near miss",
        "family F",
        "dot product",
        "ddp",
        "compiled",
        "in place",
        "twice",
        "backward",
        "patched",
        "number",
    ],
)
def test_what_cannot_be_swapped_is_refused(model, match):
    model = model()
    with pytest.raises(ValueError, match=f"(?s){match}"):
        swap(model, temperature=COOL)


@pytest.mark.bad_input
def test_a_refusal_leaves_all_as_it_was():
    model = nn.ModuleList([make("four"), kinds.Projected()])
    with pytest.raises(ValueError, match="only=lambda name"):
        swap(model, temperature=COOL)
    assert not any(isinstance(each, Swapped | SoftVQ) for each in model.modules())


@pytest.mark.bad_input
def test_restore_without_a_swap_is_refused():
    model = swapped()
    restore(model)
    with pytest.raises(ValueError, match="holds no swapped quantizer"):
        restore(model)


@pytest.mark.bad_input
def test_codes_must_be_a_word_that_is_known():
    with pytest.raises(ValueError, match="codes is 'keeps'; valid are: keep, restart"):
        swap(make("four"), codes="keeps")


def attach_after_scheduler():
    model = make("channels last")
    optimizer = torch.optim.Adam(model.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    swap(model, temperature=COOL)
    attach(model, optimizer)


def attach_without_the_old_codes():
    model = make("four")
    optimizer = torch.optim.Adam(model.encoder.parameters())
    swap(model, temperature=COOL)
    attach(model, optimizer)


def attach_of_another_model():
    model = make("channels last")
    optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters())
    swap(model, temperature=COOL)
    attach(model, optimizer)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "match"),
    [
        (attach_after_scheduler, "already has a scheduler.*first"),
        (attach_without_the_old_codes, "does not hold 1 of the model's 1 codebooks"),
        (attach_of_another_model, "optimizer holds no parameter of model"),
    ],
)
def test_an_optimizer_that_cannot_train_the_codes_is_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
