"""A VQ-VAE for images, and its file."""

from softvq.models.io import load_model, save_model
from softvq.models.refine import Refined, refine_indices
from softvq.models.vqvae import VQVAE, Reconstructed, VQVAEConfig

__all__ = [
    "VQVAE",
    "Reconstructed",
    "Refined",
    "VQVAEConfig",
    "load_model",
    "refine_indices",
    "save_model",
]
