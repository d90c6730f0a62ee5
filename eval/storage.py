"""How the files of a comparison are written, and what is said where one is not there or not whole.

NaN and infinities, which a diverged run has, are no JSON: they are stored as the strings ``"nan"``,
``"inf"`` and ``"-inf"``.
"""

import json
import math
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn

from softvq.files import replacing

_NOT_FINITE = {text: float(text) for text in ("nan", "inf", "-inf")}


def write_json(path: Path, values: Mapping[str, Any]) -> Path:
    r"""Write plain values as JSON, whole or not at all; what is not finite as text.

    Args:
        path: The file; missing folders are made.
        values: Of JSON's kinds.

    Returns:
        The path.

    Raises:
        ValueError: For a value that JSON has no kind for; nothing is written then.

    Example:
        >>> import tempfile
        >>> write_json(Path(tempfile.mkdtemp()) / "a.json", {"loss": math.nan}).read_text()
        '{\n "loss": "nan"\n}\n'
    """
    try:
        text = json.dumps(_encode(values), indent=1, allow_nan=False)
    except TypeError as error:
        raise ValueError(
            f"results must hold plain JSON values only: {error}. Convert it to a str or float."
        ) from error
    with replacing(path) as beside:
        beside.write_text(text + "\n", encoding="utf-8")
    return path


def decode_number(value: Any) -> Any:  # noqa: ANN401 - what is no number comes back as it is
    """The number that a string of `write_json` stands for; all else as it is.

    Example:
        >>> decode_number("-inf"), decode_number(0.5)
        (-inf, 0.5)
    """
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def is_stored_number(value: object) -> bool:
    """Whether this is a number, or stands in JSON for one that is not finite.

    Example:
        >>> is_stored_number("nan"), is_stored_number("none"), is_stored_number(True)
        (True, False, False)
    """
    if isinstance(value, str):
        return value in _NOT_FINITE
    return isinstance(value, Real) and not isinstance(value, bool)


def find_file(folder: Path | str, name: str) -> Path:
    """The file of that name in the folder of a comparison.

    Raises:
        ValueError: If it is not there; with the command that makes it.

    Example:
        >>> find_file("no-such-folder", "results.json")
        Traceback (most recent call last):
        ValueError: no-such-folder holds no results.json. Make it with: make compare \
OUT=no-such-folder
    """
    path = Path(folder) / name
    if not path.is_file():
        raise ValueError(f"{folder} holds no {name}. Make it with: make compare OUT={folder}")
    return path


def tell_remedy(folder: Path | str) -> str:
    """What to do about a file of a comparison that is not whole.

    Example:
        >>> tell_remedy("runs/compare")
        'Make it again with: make compare OUT=runs/compare'
    """
    return f"Make it again with: make compare OUT={folder}"


def refuse(message: str, remedy: str) -> NoReturn:
    """Raise a ValueError of the message and of what to do.

    Example:
        >>> refuse("inputs are missing.", " Train again.")
        Traceback (most recent call last):
        ValueError: inputs are missing. Train again.
    """
    raise ValueError(message + remedy)


def _encode(value: object) -> object:
    """Turn what JSON cannot say (NaN, infinities) into strings, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _encode(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(entry) for entry in value]
    return value
