"""Codebooks and tokens for the generator that comes next; FORMAT.md says what the files hold."""

from softvq.export.codebook import Codebook, load_codebook
from softvq.export.extract import export_codebook
from softvq.export.peers import read_codebook
from softvq.export.soft import SoftTargets
from softvq.export.stream import Stream, write_stream
from softvq.export.tokens import TokenDataset, TokenItem, load_tokens
from softvq.export.writer import Sharding, TokenExport, export_tokens

__all__ = [
    "Codebook",
    "Sharding",
    "SoftTargets",
    "Stream",
    "TokenDataset",
    "TokenExport",
    "TokenItem",
    "export_codebook",
    "export_tokens",
    "load_codebook",
    "load_tokens",
    "read_codebook",
    "write_stream",
]
