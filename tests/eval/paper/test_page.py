import pytest

from eval.paper.page import fill_page

PAGE = """# Claims

<!-- from rates -->
old
<!-- end -->
between
<!-- from stack -->
kept
<!-- end -->
"""


@pytest.fixture
def page(tmp_path):
    held = tmp_path / "docs" / "paper.md"
    held.parent.mkdir()
    held.write_text(PAGE, encoding="utf-8")
    return held


def test_tables_and_figures_are_put_in_and_what_is_missing_stays(page, tmp_path):
    (tmp_path / "rates.md").write_text("| new \\1 |\n", encoding="utf-8")
    (tmp_path / "rates.png").write_bytes(b"picture")
    assert fill_page(page, tmp_path) == ["stack"]
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert "| new \\1 |" in text
    assert "between\n<!-- from stack -->\nkept\n" in text
    assert (page.parent / "paper" / "rates.png").read_bytes() == b"picture"


def test_a_second_time_changes_nothing(page, tmp_path):
    (tmp_path / "rates.md").write_text("new\n", encoding="utf-8")
    fill_page(page, tmp_path)
    once = page.read_text(encoding="utf-8")
    fill_page(page, tmp_path)
    assert page.read_text(encoding="utf-8") == once


@pytest.mark.bad_input
def test_a_page_without_marks_is_refused(page, tmp_path):
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match="has no mark"):
        fill_page(page, tmp_path)
