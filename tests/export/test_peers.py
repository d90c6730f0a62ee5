import pytest
import torch
from diffusers import VQModel
from diffusers.models.autoencoders.vq_model import VectorQuantizer
from safetensors.torch import save_file
from torch import nn
from transformers import (
    ChameleonVQVAEConfig,
    DacConfig,
    DacModel,
    EncodecConfig,
    EncodecModel,
    JanusVQVAEConfig,
)
from transformers.models.chameleon.modeling_chameleon import ChameleonVQVAE
from transformers.models.janus.modeling_janus import JanusVQVAE
from vector_quantize_pytorch import GroupedResidualVQ, ResidualVQ, SimVQ, VectorQuantize

from softvq.export import read_codebook

TABLE = torch.sin(torch.arange(24.0)).reshape(8, 3)


class Host(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        for name, part in parts.items():
            setattr(self, name, part)


def test_lucid_vq_looks_up_the_same_codes():
    vq = VectorQuantize(3, codebook_size=8).eval()
    book = read_codebook(Host(vq=vq).state_dict())
    indices = torch.arange(8)[None]
    assert torch.equal(book.codes(indices), vq.get_codes_from_indices(indices))


def test_lucid_heads_are_codebooks_in_order():
    vq = VectorQuantize(
        6, codebook_size=8, codebook_dim=3, heads=2, separate_codebook_per_head=True
    )
    book = read_codebook(vq.state_dict())
    assert torch.equal(torch.stack(book.codebooks), vq.codebook)


def test_lucid_residual_stages_come_by_number():
    vq = ResidualVQ(dim=3, num_quantizers=11, codebook_size=8)
    book = read_codebook(vq.state_dict())
    assert torch.equal(torch.stack(book.codebooks), vq.codebooks)


def test_lucid_groups_come_group_by_group():
    vq = GroupedResidualVQ(dim=6, groups=2, num_quantizers=3, codebook_size=8)
    book = read_codebook(vq.state_dict())
    assert torch.equal(torch.stack(book.codebooks), vq.codebooks.flatten(0, 1))


def test_simvq_gives_the_codes_that_it_uses():
    vq = SimVQ(3, codebook_size=8)
    book = read_codebook(vq.state_dict())
    indices = torch.arange(8)[None]
    torch.testing.assert_close(book.codes(indices), vq.indices_to_codes(indices))


def test_diffusers_looks_up_the_same_codes():
    vq = VectorQuantizer(8, 3, beta=0.25, legacy=False)
    book = read_codebook(Host(quantize=vq).state_dict())
    assert torch.equal(book.codebook, vq.get_codebook_entry(torch.arange(8), None))


def test_diffusers_whole_model_is_read():
    model = VQModel(
        num_vq_embeddings=16, vq_embed_dim=4, block_out_channels=(32,), norm_num_groups=8
    )
    book = read_codebook(model.state_dict())
    assert torch.equal(book.codebook, model.quantize.embedding.weight)


@pytest.mark.parametrize(
    ("config", "model"),
    [(ChameleonVQVAEConfig, ChameleonVQVAE), (JanusVQVAEConfig, JanusVQVAE)],
)
def test_image_tokenizers_of_transformers_are_read(config, model):
    sizes = {"embed_dim": 8, "num_embeddings": 16, "latent_channels": 8, "base_channels": 32}
    host = model(config(**sizes, channel_multiplier=[1, 1], num_res_blocks=1, resolution=16))
    book = read_codebook(Host(vqmodel=host).state_dict())
    assert torch.equal(book.codebook, host.quantize.embedding.weight)


def test_encodec_stages_come_in_order():
    sizes = {"num_filters": 4, "hidden_size": 8, "codebook_size": 16, "codebook_dim": 8}
    host = EncodecModel(EncodecConfig(**sizes, num_lstm_layers=1))
    for i, layer in enumerate(host.quantizer.layers):
        layer.codebook.embed.fill_(i)
    book = read_codebook(host.state_dict())
    assert len(host.quantizer.layers) > 10
    assert [int(each[0, 0]) for each in book.codebooks] == [*range(len(host.quantizer.layers))]


def test_dac_stages_come_in_order():
    sizes = {"encoder_hidden_size": 8, "downsampling_ratios": [2, 2], "decoder_hidden_size": 16}
    host = DacModel(DacConfig(**sizes, n_codebooks=11, codebook_size=16, codebook_dim=4))
    book = read_codebook(host.state_dict(), metric="cosine")
    stages = host.quantizer.quantizers
    assert torch.equal(
        torch.stack(book.codebooks), torch.stack([each.codebook.weight for each in stages])
    )


@pytest.mark.parametrize(
    "key",
    [
        "quantize.embedding.weight",
        "model.quantize.embedding.weight",
        "embedding.weight",
        "quantize.embed.weight",
        "_vq_vae.embedding.weight",
        "model.quantizer.codebook",
    ],
)
def test_known_names_are_found_beside_others(key):
    state = {"encoder.weight": torch.ones(5, 5), "text.token_embedding.weight": torch.ones(4, 4)}
    assert torch.equal(read_codebook({**state, key: TABLE}).codebook, TABLE)


def test_a_key_is_taken_at_its_word():
    state = {"a.codes": TABLE, "quantize.embedding.weight": torch.ones(2, 2)}
    book = read_codebook(state, key="a.codes", metric="cosine")
    assert torch.equal(book.codebook, TABLE)
    assert book.metric == "cosine"


def test_a_file_of_another_program_is_read(tmp_path):
    save_file({"quantize.embedding.weight": TABLE}, tmp_path / "vq.safetensors")
    assert torch.equal(read_codebook(tmp_path / "vq.safetensors").codebook, TABLE)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a.weight": TABLE}, r"state holds no codebook.*key=.*a.weight \(8, 3\)"),
        ({}, "two-dimensional are: none"),
        (
            {"codebook": TABLE, "quantize.embedding.weight": TABLE},
            "codebooks of softvq, taming, diffusers",
        ),
        (
            {"_codebook.embed": TABLE[None], "_codebook.codebook_mean": TABLE},
            "_codebook.embed has affine_param",
        ),
        ({"frozen_codebook": TABLE}, "needs code_transform.weight"),
    ],
    ids=["none", "empty", "two", "affine", "simvq"],
)
def test_what_is_not_known_is_told(state, message):
    with pytest.raises(ValueError, match=message):
        read_codebook(state)


@pytest.mark.bad_input
def test_a_wrong_key_is_told():
    with pytest.raises(ValueError, match="key 'b' is none of the state's"):
        read_codebook({"a": TABLE}, key="b")


class Trap:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was run')",))


@pytest.mark.bad_input
def test_a_pickle_is_never_run(tmp_path):
    torch.save({"codebook": Trap()}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"Pickles are not opened.*weights_only=True"):
        read_codebook(tmp_path / "model.pt")


@pytest.mark.bad_input
def test_no_file_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no file"):
        read_codebook(tmp_path / "none")
