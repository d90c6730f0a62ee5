"""Two real processes with a gloo group, for measures whose data are spread over both."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from softvq.measures import CodebookUse, Cooccurrence, DistinctCodes, Psnr, Ssim
from softvq.measures.frechet import Features, FrechetDistance

CUT = {"tokens": 5, "images": 1}  # unequal shares on purpose


class Means(Features):
    name, net, dim, resize = "FD of means", "mean of each channel", 3, None

    def extract(self, images, *, low, high):
        return images.mean((2, 3))


def make_data():
    line = torch.arange(float(6 * 3 * 12 * 13))
    images = torch.sin(line * 0.7).reshape(6, 3, 12, 13)
    tokens = (torch.arange(8 * 3 * 4) * 7 % 11).reshape(8, 3, 4)
    tokens[2, 1, 1] = -1
    return images, images + 0.1 * torch.cos(line * 1.3).reshape(images.shape), tokens


def measure(images, made, tokens):
    """Every measure of these data, as numbers."""
    use, pairs, distinct = CodebookUse(16), Cooccurrence(16), DistinctCodes(3)
    psnr, ssim, distance = Psnr(), Ssim(), FrechetDistance(Means())
    weights = torch.arange(1.0, 17.0) / 136
    use.update(tokens, weights)
    pairs.update(tokens)
    distinct.update(images.mean((2, 3)))
    psnr.update(images, made)
    ssim.update(images, made)
    distance.update(images, side="reference")
    distance.update(made, side="made")
    return use, pairs, distinct, psnr, ssim, distance


def report(measures):
    use, pairs, distinct, psnr, ssim, distance = measures
    found = use.compute()
    neighbours = pairs.compute()
    codes = torch.linspace(-1, 1, 30).reshape(10, 3) * 1e-3
    return {
        "use": list(found[:4]),
        "counts": found.counts.tolist(),
        "horizontal": sorted(neighbours.horizontal.tolist()),
        "vertical": sorted(neighbours.vertical.tolist()),
        "grids": neighbours.grids,
        "distinct": distinct.compute(codes),
        "psnr": list(psnr.compute()[:4]),
        "ssim": list(ssim.compute()[:3]),
        "distance": distance.compute().distance,
    }


def work(rank, folder, queue):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    images, made, tokens = make_data()
    share = [slice(0, CUT["images"]), slice(CUT["images"], None)][rank]
    token_share = [slice(0, CUT["tokens"]), slice(CUT["tokens"], None)][rank]
    own = measure(images[share], made[share], tokens[token_share])
    whole = report([each.over_processes() for each in own])
    again = report([each.over_processes() for each in own])  # the shares are as they were
    known = FrechetDistance(Means())
    known.update(images, side="reference")
    one_sided = FrechetDistance(Means(), reference=known.reference)
    one_sided.update(made[share], side="made")
    since = own[0].over_processes().compute().dead_since.tolist()
    queue.put((rank, whole, again, one_sided.over_processes().compute().distance, since))
    dist.destroy_process_group()


def run(folder):
    """What both ranks say, rank 0 first."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    workers = [
        context.Process(target=work, args=(rank, folder, queue), daemon=True) for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    answers = sorted(queue.get(timeout=240) for _ in workers)
    for worker in workers:
        worker.join(timeout=30)
    return [answer[1:] for answer in answers]
