import csv

import pytest

from eval.paper import texts
from eval.paper.texts import draw_pairs, load_texts, read_folders, read_reviews


def test_reviews_are_read_by_source(tmp_path):
    file = tmp_path / "a.csv"
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines)
        writer.writerow(["text", "label", "source"])
        writer.writerow(['good, "very"<br />good', "1", "imdb"])
        writer.writerow(["bad", "0", "rotten_tomatoes"])
    assert read_reviews(file, "imdb") == [('good, "very" good', 1)]


def test_folders_are_classes_in_order(tmp_path):
    for name, text in (("b", "two"), ("a", "one")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "001.txt").write_text(text)
    assert read_folders(tmp_path) == ([("one", 0), ("two", 1)], ("a", "b"))


def test_a_split_is_shuffled_seeded_and_has_each_text_once(tmp_path, monkeypatch):
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        for number in range(20):
            (tmp_path / name / f"{number:03}.txt").write_text(f"{name}{number // 2 * 2}")
    monkeypatch.setattr(texts, "find_source", lambda name: tmp_path)
    held = load_texts("bbc", num_train=12, num_test=6)
    assert held == load_texts("bbc", num_train=12, num_test=6)
    assert len(set(held.texts)) == 18
    assert set(held.labels[:12]) == {0, 1}
    more = load_texts("bbc", num_train=14, num_test=6)
    assert more.texts[:12] == held.texts[:12]
    assert more.texts[14:] == held.texts[12:]
    with pytest.raises(ValueError, match=r"15 \+ 6 texts of bbc .*of which there are 20"):
        load_texts("bbc", num_train=15, num_test=6)
    assert all(
        text[0] == held.classes[label] for text, label in zip(held.texts, held.labels, strict=True)
    )


@pytest.mark.bad_input
def test_more_texts_than_there_are_are_refused():
    with pytest.raises(ValueError, match="3 texts were asked for, of which there are 1"):
        draw_pairs([("a", 0), ("a ", 0)], 3)
