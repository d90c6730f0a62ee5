"""softvq: differentiable vector quantization, measured by its hard codes."""
