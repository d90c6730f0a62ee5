"""Quantizers of our own writing, in the manner of those that people have, and a model of one."""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

K, D = 12, 4


def nearest(rows, codes):
    distances = rows.square().sum(1, keepdim=True) + codes.square().sum(1) - 2 * rows @ codes.t()
    return distances, distances.argmin(1)


class Tutorial(nn.Module):
    """Loss first, channels first; ``count`` of four or five results."""

    def __init__(self, *, count=4, averages=False):
        super().__init__()
        self.count, self.averages = count, averages
        self._embedding = nn.Embedding(K, D)
        if averages:
            self.register_buffer("_ema_cluster_size", torch.zeros(K))
            self._ema_w = nn.Parameter(torch.randn(K, D))

    def forward(self, inputs):
        x = inputs.permute(0, 2, 3, 1).contiguous()
        flat = x.view(-1, D)
        _, found = nearest(flat, self._embedding.weight)
        encodings = torch.zeros(len(found), K, dtype=x.dtype, device=x.device)
        encodings.scatter_(1, found[:, None], 1)
        quantized = (encodings @ self._embedding.weight).view(x.shape)
        if self.averages and self.training:
            self._ema_cluster_size = 0.9 * self._ema_cluster_size + 0.1 * encodings.sum(0)
            self._ema_w = nn.Parameter(0.9 * self._ema_w + 0.1 * encodings.t() @ flat.detach())
            counts = self._ema_cluster_size[:, None].clamp_min(1e-2)
            self._embedding.weight = nn.Parameter(self._ema_w / counts)
        loss = 0.25 * F.mse_loss(quantized.detach(), x)
        if not self.averages:
            loss = loss + F.mse_loss(quantized, x.detach())
        quantized = x + (quantized - x).detach()
        share = encodings.mean(0)
        perplexity = torch.exp(-torch.sum(share * torch.log(share + 1e-10)))
        quantized = quantized.permute(0, 3, 1, 2).contiguous()
        results = (loss, quantized, perplexity, encodings, found[:, None])
        return results[: self.count]


class ChannelsLast(nn.Module):
    """(B, H, W, C) in and out, codes as columns in a buffer that averages move."""

    def __init__(self):
        super().__init__()
        self.dim, self.n_embed = D, K
        embed = torch.randn(D, K)
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.zeros(K))
        self.register_buffer("embed_avg", embed.clone())

    def forward(self, z):
        flat = z.reshape(-1, D)
        _, found = nearest(flat, self.embed.t())
        one_hot = F.one_hot(found, K).type(flat.dtype)
        found = found.view(*z.shape[:-1])
        quantize = self.embed_code(found)
        if self.training:
            self.cluster_size.mul_(0.9).add_(one_hot.sum(0), alpha=0.1)
            self.embed_avg.mul_(0.9).add_(flat.detach().t() @ one_hot, alpha=0.1)
            self.embed.copy_(self.embed_avg / self.cluster_size.clamp_min(1e-2))
        diff = (quantize.detach() - z).pow(2).mean()
        return z + (quantize - z).detach(), diff, found

    def embed_code(self, indices):
        return F.embedding(indices, self.embed.t())


class InDict(nn.Module):
    """TiTok's form: two results, of which one is a dict of losses and indices."""

    def __init__(self, *, normalised=False):
        super().__init__()
        self.embedding = nn.Embedding(K, D)
        self.normalised = normalised

    def forward(self, z):
        z = rearrange(z.float(), "b c h w -> b h w c").contiguous()
        codes = self.embedding.weight
        if self.normalised:
            z, codes = F.normalize(z, dim=-1), F.normalize(codes, dim=-1)
        _, found = nearest(z.reshape(-1, D), codes)
        quantized = codes[found].view(z.shape)
        commitment = 0.25 * F.mse_loss(quantized.detach(), z)
        codebook = F.mse_loss(quantized, z.detach())
        quantized = z + (quantized - z).detach()
        return rearrange(quantized, "b h w c -> b c h w").contiguous(), {
            "quantizer_loss": commitment + codebook,
            "commitment_loss": commitment,
            "codebook_loss": codebook,
            "min_encoding_indices": found.view(z.shape[:-1]),
        }


class OneDict(nn.Module):
    """Sonnet's form: one dict, with a table of distances."""

    def __init__(self):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(K, D))

    def forward(self, z):
        distances, found = nearest(z.reshape(-1, D), self.codes)
        one_hot = F.one_hot(found, K).to(z)
        quantized = self.codes[found].view(z.shape)
        loss = F.mse_loss(quantized, z.detach()) + 0.25 * F.mse_loss(quantized.detach(), z)
        share = one_hot.mean(0)
        return {
            "quantize": z + (quantized - z).detach(),
            "loss": loss,
            "perplexity": torch.exp(-(share * (share + 1e-10).log()).sum()),
            "encodings": one_hot,
            "encoding_indices": found.view(z.shape[:-1]),
            "distances": distances,
        }


class LossTuple(nn.Module):
    """LlamaGen's form: a tuple of losses, which are None in eval mode."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(K, D)

    def forward(self, z):
        z = torch.einsum("b c h w -> b h w c", z).contiguous()
        _, found = nearest(z.view(-1, D), self.embedding.weight)
        quantized = self.embedding(found).view(z.shape)
        losses = (None, None, None, 0)
        if self.training:
            commitment = 0.25 * (quantized.detach() - z).square().mean()
            losses = ((quantized - z.detach()).square().mean(), commitment, 0.0, 0)
        quantized = z + (quantized - z).detach()
        return quantized.permute(0, 3, 1, 2).contiguous(), losses, (None, None, found)


class DotProduct(nn.Module):
    """Chooses by the dot product with codes of any norm."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(K, D)

    def forward(self, z):
        found = (z @ self.embedding.weight.t()).argmax(-1)
        quantized = self.embedding(found)
        loss = (quantized - z).square().mean()
        return z + (quantized - z).detach(), loss, found


class Projected(nn.Module):
    """SimVQ's form, family F: codes are a learned map of frozen ones."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(K, D)
        self.embedding.weight.requires_grad_(False)
        self.embedding_proj = nn.Linear(D, D)

    def forward(self, z):
        codes = self.embedding_proj(self.embedding.weight)
        _, found = nearest(z.reshape(-1, D), codes)
        quantized = codes[found].view(z.shape)
        loss = (quantized - z).square().mean()
        return (z + (quantized - z).detach(), torch.zeros(()), found), (loss, loss.detach())


def loss_of(result):
    """The loss that a host's loop would add, and the quantized values."""
    if isinstance(result, dict):
        return result["quantize"], result["loss"]
    if isinstance(result[1], dict):
        return result[0], result[1]["quantizer_loss"]
    if result[0].ndim == 0:
        return result[1], result[0]
    if isinstance(result[1], tuple):
        return result[0], sum(each for each in result[1][:3] if each is not None)
    loss = result[1] if result[1].is_floating_point() else result[2]
    return result[0], loss


class Autoencoder(nn.Module):
    """A linear map each way, and a quantizer between."""

    def __init__(self, quantize, *, first, dim=D):
        super().__init__()
        self.first = first
        self.encoder, self.decoder = nn.Linear(6, dim), nn.Linear(dim, 6)
        self.quantize = quantize

    def forward(self, x):
        z = self.encoder(x)
        result = self.quantize(z.movedim(-1, 1) if self.first else z)
        q, loss = loss_of(result)
        return self.decoder(q.movedim(1, -1) if self.first else q), loss


def data(*, grid=(4, 5)):
    """Batch of positions around a dozen centres."""
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(12, 6, generator=generator)
    shape = (8, *grid)
    which = torch.randint(12, shape, generator=generator)
    return centres[which] + 0.1 * torch.randn(*shape, 6, generator=generator)


HOSTS = {
    "four": (lambda: Tutorial(), True),
    "five": (lambda: Tutorial(count=5), True),
    "averages": (lambda: Tutorial(averages=True), True),
    "channels last": (ChannelsLast, False),
    "in dict": (InDict, True),
    "normalised": (lambda: InDict(normalised=True), True),
    "one dict": (OneDict, False),
    "loss tuple": (LossTuple, True),
}


def make(name, *, seed=0):
    torch.manual_seed(seed)
    kind, first = HOSTS[name]
    return Autoencoder(kind(), first=first)


class EuclideanCodebook(nn.Module):
    """EnCodec's codebook: codes in a buffer that averages move."""

    def __init__(self):
        super().__init__()
        self.register_buffer("inited", torch.ones(1))
        self.register_buffer("cluster_size", torch.ones(K))
        self.register_buffer("embed", torch.randn(K, D))
        self.register_buffer("embed_avg", self.embed.clone())

    def forward(self, rows):
        found = nearest(rows.reshape(-1, D), self.embed)[1]
        quantized = self.embed[found].view(rows.shape)
        if self.training:
            one_hot = F.one_hot(found, K).type(rows.dtype)
            self.cluster_size.mul_(0.9).add_(one_hot.sum(0), alpha=0.1)
            self.embed_avg.mul_(0.9).add_(one_hot.t() @ rows.detach().reshape(-1, D), alpha=0.1)
            self.embed.copy_(self.embed_avg / self.cluster_size[:, None].clamp_min(1e-2))
        return quantized, found.view(rows.shape[:-1])


class AudioStage(nn.Module):
    """EnCodec's ``VectorQuantization``: (B, D, T) in, ``(quantized, indices, loss[1])`` out."""

    def __init__(self):
        super().__init__()
        self._codebook = EuclideanCodebook()

    def forward(self, z):
        x = z.movedim(1, -1)
        quantized, found = self._codebook(x)
        loss = torch.tensor([0.0], requires_grad=self.training)
        if self.training:
            quantized = x + (quantized - x).detach()
            loss = loss + F.mse_loss(quantized.detach(), x)
        return quantized.movedim(-1, 1).contiguous(), found, loss


class AudioStack(nn.Module):
    """EnCodec's ``ResidualVectorQuantization``, with as many stages as the bandwidth gives."""

    def __init__(self, num=3):
        super().__init__()
        self.layers = nn.ModuleList([AudioStage() for _ in range(num)])

    def forward(self, z, n_q=None):
        total, rest, losses, indices = 0.0, z, [], []
        for layer in self.layers[: n_q or len(self.layers)]:
            quantized, found, loss = layer(rest)
            rest = rest - quantized.detach()
            total = total + quantized
            indices.append(found)
            losses.append(loss)
        return total, torch.stack(indices), torch.stack(losses)


class TwoLevels(nn.Module):
    """VQ-VAE-2 in the small: a coarse grid whose decoded codes help the fine one."""

    def __init__(self):
        super().__init__()
        self.enc_b, self.enc_t = nn.Conv2d(3, D, 2, stride=2), nn.Conv2d(D, D, 2, stride=2)
        self.quantize_t, self.quantize_b = ChannelsLast(), ChannelsLast()
        self.quantize_conv_b = nn.Conv2d(2 * D, D, 1)
        self.dec_t, self.upsample_t = (nn.ConvTranspose2d(D, D, 2, stride=2) for _ in range(2))
        self.dec = nn.ConvTranspose2d(2 * D, 3, 2, stride=2)

    def encode(self, images):
        bottom = self.enc_b(images)
        quant_t, diff_t, id_t = self.quantize_t(self.enc_t(bottom).permute(0, 2, 3, 1))
        quant_t = quant_t.permute(0, 3, 1, 2)
        joined = self.quantize_conv_b(torch.cat([self.dec_t(quant_t), bottom], 1))
        quant_b, diff_b, id_b = self.quantize_b(joined.permute(0, 2, 3, 1))
        return quant_t, quant_b.permute(0, 3, 1, 2), diff_t + diff_b, id_t, id_b

    def decode(self, quant_t, quant_b):
        return self.dec(torch.cat([self.upsample_t(quant_t), quant_b], 1))

    def forward(self, images):
        quant_t, quant_b, diff, _, _ = self.encode(images)
        return self.decode(quant_t, quant_b), diff
