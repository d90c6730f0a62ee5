"""Whether the pictures behind a shard are still those that it was made from."""

from pathlib import Path

from softvq.export.manifest import Plan
from softvq.export.pictures import Pictures
from softvq.export.shards import open_shard


def refuse_changed(
    folder: Path, plan: Plan, pictures: Pictures, *, index: int, items: range
) -> None:
    """Raise if a picture or a label of items that were exported is another one now.

    Args:
        folder: Of the set.
        plan: Of the set.
        pictures: To read again.
        index: Of a whole shard.
        items: Some of its items.

    Raises:
        ValueError: Naming the first item that changed, and how many did.
    """
    path = folder / plan.shard_name(index)
    stored = open_shard(path, plan=plan)
    batch = pictures.read(items.start, items.stop)
    first = plan.shard_items(index).start
    rows = slice(items.start - first, items.stop - first)
    changed = stored["source_digests"][rows] != batch.digests
    if batch.labels is not None:
        changed |= stored["labels"][rows] != batch.labels
    if not bool(changed.any()):
        return
    where = int(changed.nonzero()[0])
    key = pictures.keys[items.start + where]
    expected = int(stored["source_digests"][rows][where])
    raise ValueError(
        f"dataset {plan.dataset!r}: {key!r} is another picture, or has another label, than {path} "
        f"was made from (digest {_show(expected)} then, {_show(int(batch.digests[where]))} now; "
        f"{int(changed.sum())} such among {len(items)}). Give the data of then, or another folder."
    )


def _show(digest: int) -> str:
    """As it begins in hexadecimal."""
    return digest.to_bytes(8, "little", signed=True).hex()
