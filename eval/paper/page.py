"""The page of the paper's claims: its tables are put in from what the experiments wrote."""

import re
import shutil
from pathlib import Path

from softvq.files import replacing

MARK = re.compile(r"(<!-- from (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_page(page: Path, folder: Path) -> list[str]:
    r"""Put the tables between the page's marks, and the figures into a folder beside it.

    A mark is a line ``<!-- from NAME -->``, its end ``<!-- end -->``; ``NAME.md`` goes between
    them, and ``NAME.png`` to a folder of the page's own name.

    Args:
        page: Markdown with marks.
        folder: Of the experiments.

    Returns:
        Names whose tables the folder does not hold; they are left as they were.

    Raises:
        ValueError: If the page has no mark.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> page = folder / "page.md"
        >>> _ = page.write_text("A\n<!-- from rates -->\nold\n<!-- end -->\n")
        >>> _ = (folder / "rates.md").write_text("new\n")
        >>> fill_page(page, folder)
        []
        >>> print(page.read_text(), end="")
        A
        <!-- from rates -->
        <BLANKLINE>
        new
        <BLANKLINE>
        <!-- end -->
    """
    text = page.read_text(encoding="utf-8")
    names = [name for _, name, _ in MARK.findall(text)]
    if not names:
        raise ValueError(
            f"page {page} has no mark such as '<!-- from readout -->' ... <!-- end -->."
        )
    missing = [name for name in names if not (folder / f"{name}.md").exists()]

    def put(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        if name in missing:
            return match.group()
        return f"{begin}\n{(folder / f'{name}.md').read_text(encoding='utf-8').strip()}\n\n{end}"

    with replacing(page) as beside:
        beside.write_text(MARK.sub(put, text), encoding="utf-8")
    figures = page.with_suffix("")
    for name in dict.fromkeys(names):
        figure = folder / f"{name}.png"
        if figure.exists():
            figures.mkdir(exist_ok=True)
            shutil.copyfile(figure, figures / figure.name)
    return missing
