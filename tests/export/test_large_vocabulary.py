"""vocab_size = K + specials, everywhere, where K fills 16 bits and one special more does not."""

import numpy as np
import pytest
import torch

from softvq import HardVQ
from softvq.export import export_codebook, export_tokens, load_codebook, load_tokens, write_stream
from softvq.export.describe import describe_tokens
from softvq.export.parquet import read_parquet, write_parquet
from softvq.models import VQVAE, VQVAEConfig

K = 65536


@pytest.fixture(scope="module")
def large():
    """A model whose last code is the very first latent of the first picture."""
    torch.manual_seed(0)
    quantizer = HardVQ(K, 4, layout="channels_first", codebook="gradient")
    model = VQVAE(quantizer, VQVAEConfig(dim=4, hidden=8, residual_hidden=4, blocks=1)).eval()
    images = torch.sin(torch.arange(5 * 3 * 81.0)).reshape(5, 3, 9, 9)
    with torch.no_grad():
        codes = torch.randn(K, 4)
        codes[-1] = model.latents(images)[0, :, 0, 0]
    state = quantizer.state_dict() | {"codebook": codes, "started": torch.tensor(True)}
    quantizer.load_state_dict(state)
    return model, images


@pytest.mark.parametrize(
    ("specials", "dtype", "stream_dtype"),
    [([], "uint16", "uint16"), (["bos"], "uint32", "uint32"), (["a", "b"], "uint32", "uint32")],
    ids=str,
)
def test_every_file_has_codes_and_specials(large, tmp_path, specials, dtype, stream_dtype):
    model, images = large
    numbers = {name: K + i for i, name in enumerate(specials)}
    size = K + len(specials)
    export_tokens(model, images, tmp_path / "t", specials=specials)
    tokens = load_tokens(tmp_path / "t", codebook=model)
    plan = tokens.manifest.plan
    assert (plan.vocab_size, plan.dtype, plan.specials) == (size, dtype, numbers)
    assert str(tokens.shard_tokens(0).dtype) == f"torch.{dtype}"
    assert int(tokens[0].tokens[0, 0]) == K - 1
    assert (tokens.vocab_size, tokens.num_codes) == (size, K)
    assert describe_tokens(tmp_path / "t")["vocabulary"] == size

    book = load_codebook(export_codebook(model, tmp_path / "c", tokens=tokens))
    assert (book.vocab_size, book.specials) == (size, numbers)
    assert len(book.counts[0]) == K
    assert book.to_embedding().num_embeddings == size

    start = specials[-1] if specials else None
    stream = write_stream(tokens, tmp_path / "train.bin", start=start)
    assert stream.dtype == stream_dtype
    flat = np.memmap(stream.path, dtype=stream.dtype, mode="r")
    assert len(flat) == 5 * (9 + bool(specials))
    assert flat[: 1 + bool(specials)].tolist() == [*list(numbers.values())[-1:], K - 1]

    rows, facts = read_parquet(write_parquet(tokens, tmp_path / "p"), cache_dir=tmp_path / "cache")
    assert (facts["vocab_size"], facts["specials"]) == (size, numbers)
    assert rows.features["tokens"].feature.dtype == dtype
    assert rows[0]["tokens"][0] == K - 1
    with torch.no_grad():
        pictures = model(images).reconstruction
    assert torch.equal(tokens.decode(tokens.batch(torch.arange(5)).tokens, model), pictures)
