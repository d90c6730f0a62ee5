"""A VQ-VAE for images, and its file."""

from softvq.models.io import load_model, save_model
from softvq.models.vqvae import VQVAE, Reconstructed, VQVAEConfig

__all__ = ["VQVAE", "Reconstructed", "VQVAEConfig", "load_model", "save_model"]
