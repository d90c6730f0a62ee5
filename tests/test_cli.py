import json
import re
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

import softvq
from softvq import SoftVQ
from softvq.cli import FORMATS, Format, describe_file, main
from softvq.export import load_codebook, load_tokens
from softvq.models import VQVAE, VQVAEConfig, save_model
from softvq.models.io import write_tensors
from train.checkpoint import FORMAT, FORMAT_VERSION, save_checkpoint
from train.presets import smoke
from train.values import override, to_json


@pytest.fixture
def model():
    config = VQVAEConfig(dim=8, hidden=8, residual_hidden=4, blocks=1)
    return VQVAE(SoftVQ(32, 8, layout="channels_first"), config)


@pytest.fixture
def path(model, tmp_path):
    return save_model(model, tmp_path / "model.safetensors")


def test_info_prints_one_fact_a_line(path, capsys):
    main(["info", str(path)])
    lines = capsys.readouterr().out.splitlines()
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in lines)
    assert facts["kind"] == "model"
    assert facts["format"] == "softvq-model 1"
    assert facts["bytes"] == f"{path.stat().st_size:,}"
    assert (facts["codes (K)"], facts["bits per token"]) == ("32", "5")
    assert len({line.index(facts[name]) for name, line in zip(facts, lines, strict=True)}) == 1


def test_info_prints_json(path, capsys):
    main(["info", "--json", str(path)])
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(describe_file(path)))


def test_a_checkpoint_of_train_is_known(model, tmp_path):
    optimizer = torch.optim.Adam(model.parameters())
    state = {"config": to_json(override(smoke(), ["num_codes=32"])), "step": 4, "counts": [1, 3]}
    save_checkpoint(tmp_path / "c.safetensors", model, optimizer, state=state)
    facts = describe_file(tmp_path / "c.safetensors")
    assert (facts["kind"], facts["step"]) == ("checkpoint of a training run", "4 of 16")
    assert facts["distinct codes"] == 32
    assert FORMATS[FORMAT].version == FORMAT_VERSION


def test_another_format_is_one_more_entry(tmp_path, monkeypatch):
    def describe(config, tensors):
        return {"tokens": tensors["tokens"].numel(), "from": config["source"]}

    monkeypatch.setitem(FORMATS, "softvq-tokens", Format("token set", 1, describe))
    config = {"format": "softvq-tokens", "version": 1, "source": "cifar10"}
    write_tensors(tmp_path / "t.safetensors", {"tokens": torch.zeros(2, 3).long()}, config)
    facts = describe_file(tmp_path / "t.safetensors")
    assert (facts["kind"], facts["tokens"], facts["from"]) == ("token set", 6, "cifar10")


def test_the_command_runs_by_itself_and_needs_no_optional_package(path):
    code = (
        "import sys; from softvq.cli import main; main(); print({*sys.modules} & {'tyro', 'rich'})"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, "info", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("kind ")
    assert done.stdout.endswith("set()\n")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("none", lambda path: None, "is no file: nothing to load"),
        ("folder", lambda path: path.mkdir(), "is no file: nothing to load"),
        ("text", lambda path: path.write_text("hello"), "is a text file that begins 'hello'"),
        ("empty", lambda path: path.touch(), "is no whole safetensors file"),
        ("other", lambda path: save_file({"a": torch.ones(1)}, path), "no softvq config in its"),
        (
            "kind",
            lambda path: write_tensors(path, {}, {"format": "softvq-modle", "version": 1}),
            r"is 'softvq-modle'; valid are: softvq-model, .*Did you mean 'softvq-model'",
        ),
        (
            "newer",
            lambda path: write_tensors(path, {}, {"format": "softvq-model", "version": 2}),
            "is softvq-model version 2; this softvq reads up to 1",
        ),
        (
            "lacking",
            lambda path: write_tensors(path, {}, {"format": "softvq-model", "version": 1}),
            "is a softvq-model file that lacks 'quantizer': it is damaged",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_cannot_be_told_is_one_line_with_the_path(tmp_path, name, make, message):
    path = tmp_path / name
    make(path)
    with pytest.raises(SystemExit, match=rf"^error: .*{re.escape(str(path))}.*{message}") as caught:
        main(["info", str(path)])
    assert "\n" not in str(caught.value)


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"softvq {softvq.__version__}\n"


@pytest.mark.bad_input
@pytest.mark.parametrize("words", [[], ["inof"], ["info"]])
def test_a_wrong_command_shows_the_right_ones(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "usage: softvq" in capsys.readouterr().err


@pytest.fixture
def started(model, tmp_path):
    with torch.no_grad():
        model.quantizer.start_(torch.sin(torch.arange(2 * 8 * 36.0)).reshape(2, 8, 6, 6))
    return save_model(model, tmp_path / "started.safetensors")


def export_textures(model, out, *options):
    sizes = ["--data", "textures", "--split", "test", "--num-images", "5", "--size", "16"]
    main(["export", "tokens", str(model), str(out), *sizes, "--shard-size", "2", *options])


def test_tokens_a_codebook_and_a_stream_come_from_the_shell(started, model, tmp_path, capsys):
    export_textures(started, tmp_path / "t", "--specials", "bos,mask", "--soft-top", "2")
    assert capsys.readouterr().out.endswith("t (3 shards written, 0 kept; whole)\n")
    tokens = load_tokens(tmp_path / "t", codebook=model)
    assert (len(tokens), tokens.grid, tokens.vocab_size) == (5, (4, 4), 34)
    assert tokens[0].soft_weights.shape == (4, 4, 2)
    book = tmp_path / "c.safetensors"
    main(["export", "codebook", str(started), str(book), "--tokens", str(tmp_path / "t")])
    assert load_codebook(book).counts[0].sum() == 80
    assert load_codebook(book).downsampling == 4
    main(["export", "stream", str(tmp_path / "t"), str(tmp_path / "t.bin"), "--start", "bos"])
    assert capsys.readouterr().out.endswith("t.bin (85 x uint16)\n")
    main(["info", str(tmp_path / "t")])
    assert "bos = 32, mask = 33" in capsys.readouterr().out


def test_two_shells_share_a_folder(started, tmp_path, capsys):
    export_textures(started, tmp_path / "t", "--process", "1/2")
    assert "1 shards written, 0 kept; 2 shards of others to come" in capsys.readouterr().out
    export_textures(started, tmp_path / "t", "--process", "0/2")
    assert "2 shards written, 0 kept; whole" in capsys.readouterr().out


def test_a_codebook_comes_out_of_a_checkpoint_and_a_peers_file(started, model, tmp_path):
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint, peer = tmp_path / "checkpoint", tmp_path / "peer"
    save_checkpoint(checkpoint, model, optimizer, state={"step": 4})
    save_file({"odd.codes": model.quantizer.codebook.detach().clone()}, peer)
    for source, options in ((checkpoint, []), (peer, ["--key", "odd.codes"])):
        main(["export", "codebook", str(source), str(tmp_path / "c"), *options])
        assert torch.equal(load_codebook(tmp_path / "c").codebook, model.quantizer.codebook)


def test_swap_report_prints_what_a_swap_would_do(tmp_path, capsys):
    lines = [
        "from diffusers.models.autoencoders.vq_model import VectorQuantizer",
        "def build():",
        "    return VectorQuantizer(8, 4, beta=0.25, legacy=False)",
    ]
    (tmp_path / "host_of_cli.py").write_text("\n".join(lines))
    main(["swap-report", f"{tmp_path / 'host_of_cli.py'}:build"])
    assert "K = 8, D = 4, codes in embedding.weight" in capsys.readouterr().out


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["swap-report", "nowhere"], "target must be 'package.module:name'"),
        (["export", "tokens", "M", "T", "--data", "textures", "--process", "2"], "must be like"),
        (["export", "tokens", "M", "T", "--temperature", "1"], "give --soft-top"),
        (["export", "tokens", "none", "T"], "none is no file"),
        (["export", "codebook", "none", "C"], "none is no file"),
        (["export", "stream", "none", "S"], "none holds no manifest.json"),
        (["export", "tokens", "M", "/proc/none", "--data", "textures"], "No such file"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_what_an_export_cannot_do_is_one_line(started, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    given = [str(started) if word == "M" else word for word in words]
    with pytest.raises(SystemExit, match=f"^error: .*{message}") as caught:
        main(given)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "T").exists()


@pytest.mark.bad_input
def test_a_pickle_is_not_opened(tmp_path):
    torch.save({"codebook": torch.ones(2, 2)}, tmp_path / "m.pt")
    with pytest.raises(SystemExit, match="Pickles are not opened"):
        main(["export", "codebook", str(tmp_path / "m.pt"), str(tmp_path / "c")])
