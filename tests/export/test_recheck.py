import pytest
import torch

from softvq.export import Sharding, export_tokens, load_tokens
from softvq.export.manifest import MANIFEST
from softvq.export.recheck import refuse_changed

SHARDING = Sharding(batch_size=3, shard_size=4)


class Changed:
    """The same names, but one picture or label is another."""

    def __init__(self, dataset, *, picture=None, label=None):
        self._dataset, self._picture = dataset, picture
        self.name, self.keys, self.labels = dataset.name, dataset.keys, dataset.labels.clone()
        if label is not None:
            self.labels[label] += 1

    def __len__(self):
        return len(self._dataset)

    def batch(self, indices):
        images = self._dataset.batch(indices)
        if self._picture is not None:
            images[indices == self._picture, 2, -1, -1] ^= 1  # the least that can change
        return images


def read_folder(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.bad_input
@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("what", ["picture", "label"])
@pytest.mark.parametrize("item", [0, 3, 6, 9])
def test_another_picture_or_label_under_the_same_name_is_found(
    model, waves, exported, finished, what, item
):
    if not finished:
        (exported / MANIFEST).unlink()
    before = read_folder(exported)
    message = rf"'train/00{item} ü\\n' is another picture, or has another label, than .*tokens-0000"
    with pytest.raises(ValueError, match=message):
        export_tokens(
            model,
            Changed(waves, **{what: item}),
            exported,
            specials=["bos", "mask"],
            sharding=SHARDING,
        )
    assert read_folder(exported) == before


def test_a_change_in_what_is_still_to_be_made_is_no_change(model, waves, exported):
    (exported / MANIFEST).unlink()
    (exported / "tokens-00001.safetensors").unlink()
    told = load_source_digest(model, waves, exported)
    other = load_source_digest(model, Changed(waves, picture=5), exported, again=True)
    assert told != other


def load_source_digest(model, dataset, folder, *, again=False):
    if again:
        (folder / MANIFEST).unlink()
        (folder / "tokens-00001.safetensors").unlink()
    export_tokens(model, dataset, folder, specials=["bos", "mask"], sharding=SHARDING)
    return load_tokens(folder).manifest.source_digest


def test_without_reading_again_the_names_are_trusted(model, waves, exported):
    done = export_tokens(
        model,
        Changed(waves, picture=1),
        exported,
        specials=["bos", "mask"],
        sharding=SHARDING,
        reread=False,
    )
    assert (done.written, done.kept) == (0, 3)


@pytest.mark.bad_input
def test_the_message_has_both_digests_and_how_many(exported, waves):
    plan = load_tokens(exported).manifest.plan

    class Other:
        keys = waves.keys

        def read(self, first, end):
            images = torch.zeros(end - first, 3, 2, 2)
            return type("Batch", (), {"labels": None, "digests": images[:, 0, 0, 0].long()})

    message = r"digest [0-9a-f]{16} then, 0{16} now; 2 such among 2"
    with pytest.raises(ValueError, match=message):
        refuse_changed(exported, plan, Other(), index=1, items=range(5, 7))
