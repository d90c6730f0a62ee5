"""Print the lowest versions that pyproject.toml allows for the core and the extra `images`.

One requirement a line, for pip: `make lowest` tests with them.
"""

import re
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
LISTS = ("dependencies", "images")


def lowest(name: str, text: str) -> list[str]:
    """Requirements of one list of pyproject.toml, each at its lower bound."""
    (body,) = re.findall(rf"^{name} = \[\n(.*?)^\]", text, flags=re.DOTALL | re.MULTILINE)
    return [f"{package}=={bound}" for package, bound in re.findall(r'"([\w-]+)>=([\d.]+)', body)]


if __name__ == "__main__":
    text = PYPROJECT.read_text(encoding="utf-8")
    print("\n".join(requirement for name in LISTS for requirement in lowest(name, text)))
