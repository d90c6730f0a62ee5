"""A hook of mkdocs: the samples' pictures are pages' pictures, without a second copy."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

SAMPLES = Path(__file__).parent.parent / "samples"


def on_files(files: Files, config: Any) -> Files:  # noqa: ANN401 - mkdocs' own dict
    """Add ``pictures/NAME.png`` for every picture of the samples."""
    for path in SAMPLES.glob("*.png"):
        files.append(File.generated(config, f"pictures/{path.name}", abs_src_path=str(path)))
    return files
