"""Training of the bundled VQ-VAE: configs, presets, methods, one loop."""
