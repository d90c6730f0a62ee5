"""The experiments of the DDCL-Attention paper, done again: `python -m eval paper`."""
