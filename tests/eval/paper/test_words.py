import torch

from eval.paper.words import split_words


class Pieces:
    def convert_ids_to_tokens(self, ids):
        return [("[CLS]", "un", "##real", "##ly", "good")[place] for place in ids]


def test_pieces_join_to_words():
    words = split_words(Pieces(), torch.tensor([0, 1, 2, 3, 4]))
    assert "".join(words) == "[CLS] unreally good"


def test_no_tokens_give_no_words():
    assert split_words(Pieces(), torch.tensor([], dtype=torch.int64)) == []
