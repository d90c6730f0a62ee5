"""Configs of any kind as plain values: to JSON and back, some replaced, and where two differ."""

import dataclasses
import functools
import json
import re
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from softvq.checks import choose

Config = TypeVar("Config")


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - any config class
    return TypeAdapter(kind)


def to_json(config: object) -> dict[str, Any]:
    """A config, of a run or of another kind, as plain JSON values.

    Example:
        >>> from train.config import RunConfig
        >>> to_json(RunConfig(preset="quick"))["data"]["source"]
        'cifar10'
    """
    return json.loads(_adapter(type(config)).dump_json(config))


def read_config(values: dict[str, Any], kind: type[Config]) -> Config:
    """A config of plain values.

    Args:
        values: As `to_json` gives them.
        kind: Its class.

    Raises:
        ValueError: Naming each key that does not fit, and why.

    Example:
        >>> from train.config import OptimConfig
        >>> read_config({"steps": "7"}, OptimConfig).steps
        7
    """
    try:
        return _adapter(kind).validate_python(values)
    except ValidationError as error:
        lines = [_describe(dict(each)) for each in error.errors()]
        raise ValueError("The config does not fit:\n  " + "\n  ".join(lines)) from None


def _describe(error: dict[str, Any]) -> str:
    """One line on one fault: pydantic's words, or our own where a check of ours raised."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return (
        f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']} (got {error['input']!r})"
    )


def find_changes(saved: dict[str, Any], asked: dict[str, Any], prefix: str = "") -> list[str]:
    """Where two configs as JSON differ, one text a value.

    Example:
        >>> find_changes({"optim": {"steps": 1}}, {"optim": {"steps": 2}})
        ['optim.steps was 1 and is 2']
    """
    found = []
    for key in sorted(saved.keys() | asked.keys()):
        before, now = saved.get(key), asked.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            found += find_changes(before, now, f"{prefix}{key}.")
        elif before != now:
            found.append(f"{prefix}{key} was {before!r} and is {now!r}")
    return found


def override(config: Config, assignments: list[str]) -> Config:
    """A config, of a run or of another kind, with some values replaced.

    Args:
        config: To begin with.
        assignments: ``key=value`` or ``key.path=value``; a bare key is looked for in all parts.
            Values are read by the field's type and never run as code.

    Returns:
        The new config.

    Raises:
        ValueError: For an unknown or ambiguous key, listing the valid ones and naming the nearest,
            or a value of the wrong type.

    Example:
        >>> from train.config import RunConfig
        >>> override(RunConfig(preset="quick"), ["optim.steps=10", "hidden=64"]).net.hidden
        64
    """
    values = to_json(config)
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ValueError(f"override {assignment!r} must have the form key=value.")
        *parts, last = _find(key, type(config)).split(".", 2)
        target = values
        for part in parts:
            target = target[part]
        target[last] = _parse(value, free=parts == ["method", "options"])
    return read_config(values, type(config))


def _parse(value: str, *, free: bool) -> Any:  # noqa: ANN401 - the field's type decides
    """Null and lists as JSON; the rest stays text for the field's type to read.

    Options of a method have no declared type: what reads as JSON is JSON, the rest is text.
    """
    if value in ("none", "None", "null"):
        return None
    if not free and value[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def _find(key: str, kind: type) -> str:
    """Full path of a key that may be given without its part."""
    paths = _paths(kind)
    free = "method.options" in paths and re.fullmatch(r"method\.options\.\w+", key)
    if key in paths or free:
        return key
    if key == "data" and "data.source" in paths:  # `data=textures` says it all
        return "data.source"
    ends = [path for path in paths if path.split(".")[-1] == key]
    if len(ends) == 1:
        return ends[0]
    return choose("key", key, ends or paths)


def _paths(kind: Any, prefix: str = "") -> list[str]:  # noqa: ANN401 - any dataclass
    found = []
    for each in dataclasses.fields(kind):
        if dataclasses.is_dataclass(each.type):
            found += _paths(each.type, f"{prefix}{each.name}.")
        else:
            found.append(f"{prefix}{each.name}")
    return found
