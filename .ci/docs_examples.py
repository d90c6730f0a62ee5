"""An extension of griffe: our ``Example:`` is its ``Examples:``, so doctests come out as code."""

import re
from typing import Any

import griffe

HEADING = re.compile(r"^( *)Example:$", flags=re.MULTILINE)


class ExamplesSection(griffe.Extension):
    """Renames the heading in every docstring, after it is read and before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401 - griffe's own
        """Rename in the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = HEADING.sub(r"\1Examples:", obj.docstring.value)
