"""Real encoders at small sizes: PyTorch's, Hugging Face's BERT, timm's vision transformer."""

import pytest
import torch
from torch import nn

from softvq import DDCLAttention, DDCLReadout, Temperature, attach, with_readout
from softvq.nn.encoders import find_mask, find_tokens
from tests.contracts.quantizer import waves

ABSOLUTE = Temperature(gradient=0.5, prototypes=0.3, unit="absolute")
MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


def make_head():
    return DDCLReadout(8, 4, temperature=ABSOLUTE)


def make_transformer(*, batch_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def make_bert():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertModel(config)


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "sequence first"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_pytorchs_encoder_with_its_own_mask(batch_first):
    encoder, z = make_transformer(batch_first=batch_first), waves(2, 5, 8)
    model = with_readout(encoder, make_head())
    given = z if batch_first else z.transpose(0, 1)
    model(given, src_key_padding_mask=~MASK)
    model.eval()
    out = model(given, src_key_padding_mask=~MASK)
    tokens = encoder(given, src_key_padding_mask=~MASK)
    expected = model.readout(tokens if batch_first else tokens.transpose(0, 1), mask=MASK)
    torch.testing.assert_close(out.mean, expected.mean)
    alone = model(z[1:, :3] if batch_first else z[1:, :3].transpose(0, 1))
    torch.testing.assert_close(out.mean[1:], alone.mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("nested", [True, False], ids=["nested", "padded"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_sequence_without_tokens_is_cleaned_whatever_the_encoder_leaves_there(training, nested):
    """In training the encoder leaves numbers in such a row, in eval zeros or NaN, by its path."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
    model = with_readout(encoder, make_head())
    z = waves(3, 5, 8)
    mask = torch.tensor([[True] * 5, [False] * 5, [True] * 3 + [False] * 2])
    model(z[::2], mask=mask[::2], src_key_padding_mask=~mask[::2])  # prototypes start
    model.train(training)
    with torch.set_grad_enabled(training):
        out = model(z, src_key_padding_mask=~mask)
        expected = model(z[::2], src_key_padding_mask=~mask[::2])
    torch.testing.assert_close(out.mean[::2], expected.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out.loss, expected.loss, rtol=1e-5, atol=1e-6)
    assert out.mean[1].abs().max() == 0
    assert out.assignment[1].abs().max() == 0


def test_a_hugging_face_encoder_with_its_own_mask_however_it_is_padded():
    model = with_readout(make_bert(), make_head())
    ids = torch.arange(10).reshape(2, 5) + 1
    model(input_ids=ids)
    model.eval()
    out = model(input_ids=ids, attention_mask=MASK.long())
    alone = model(input_ids=ids[1:, :3])
    torch.testing.assert_close(out.mean[1:], alone.mean, rtol=1e-5, atol=1e-5)
    explicit = model(input_ids=ids, attention_mask=MASK.long(), mask=MASK)
    assert torch.equal(out.mean, explicit.mean)


def test_a_vision_transformer_reads_its_patches_alone():
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    encoder = timm.models.vision_transformer.VisionTransformer(
        img_size=8, patch_size=4, embed_dim=8, depth=1, num_heads=2, num_classes=3, reg_tokens=2
    )
    model = with_readout(encoder, DDCLAttention(8, 4, temperature=ABSOLUTE))
    pictures = waves(2, 3, 8, 8)
    model(pictures)
    model.eval()
    out = model(pictures)
    assert out.assignment.shape == (2, 1, 4, 4)
    expected = model.readout(encoder.forward_features(pictures)[:, 3:])
    torch.testing.assert_close(out.tokens, expected.tokens)


def test_training_reaches_encoder_and_prototypes():
    model = with_readout(make_bert(), make_head())
    ids = torch.arange(10).reshape(2, 5) + 1
    model(input_ids=ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    attach(model, optimizer)
    embedding = model.encoder.embeddings.word_embeddings.weight
    codebook = model.readout.prototypes.heads[0].codebook
    before = embedding.detach().clone(), codebook.detach().clone()
    out = model(input_ids=ids, attention_mask=MASK.long())
    (out.mean.square().sum() + out.loss).backward()
    optimizer.step()
    assert not torch.equal(embedding, before[0])
    assert not torch.equal(codebook, before[1])


@pytest.mark.parametrize(
    "answer",
    [torch.ones(2, 3, 4), (torch.ones(2, 3, 4), None), {"last_hidden_state": torch.ones(2, 3, 4)}],
    ids=["tensor", "tuple", "mapping"],
)
def test_tokens_are_found_in_what_encoders_return(answer):
    assert torch.equal(find_tokens(answer), torch.ones(2, 3, 4))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"attention_mask": torch.tensor([[1, 0]])}, [[True, False]]),
        ({"attention_mask": torch.tensor([[1.0, 0.0]])}, [[True, False]]),
        ({"src_key_padding_mask": torch.tensor([[False, True]])}, [[True, False]]),
        ({"src_key_padding_mask": torch.tensor([[0.0, -torch.inf]])}, [[True, False]]),
    ],
    ids=["none", "ints", "floats", "drops", "added"],
)
def test_masks_are_read_as_their_owners_mean_them(options, expected):
    mask = find_mask(options)
    assert (None if mask is None else mask.tolist()) == expected


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "answer", [torch.ones(2, 4), torch.ones(2, 4, 3, 3), "text", ()], ids=["2d", "4d", "text", "no"]
)
def test_answers_without_tokens_are_refused(answer):
    with pytest.raises(ValueError, match="encoder must return tokens"):
        find_tokens(answer)


@pytest.mark.bad_input
def test_a_mask_over_pairs_is_refused():
    with pytest.raises(ValueError, match=r"attention_mask must be \(B, N\)"):
        find_mask({"attention_mask": torch.ones(2, 1, 3, 3)})
