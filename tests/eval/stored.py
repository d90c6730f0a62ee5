"""A comparison's folder as the page's tests want it: three methods, one with markup for a name."""

import torch

from eval.pictures import save_pictures
from eval.results import HARD_MEASURES, SOFT_MEASURES, save_results

EVIL = "<script>alert('&')</script>"


PIXELS = {
    "low": -1.0,
    "high": 1.0,
    "dtype": "float32",
    "size": "4 x 4",
    "crop": "none",
    "resize": "none",
    "images": 20,
    "net": "none",
}


def make_method(label, values, *, soft, warnings=()):
    runs = []
    for seed, value in enumerate(values):
        evals = []
        for images, share in ((0, 0.5), (100, 1.0)):
            record = dict.fromkeys(HARD_MEASURES, 12.0) | dict.fromkeys(SOFT_MEASURES)
            record |= {"psnr_hard": share * value, "use_hard": 0.5}
            if soft:
                record |= dict.fromkeys(SOFT_MEASURES, 0.875) | {"psnr_soft": 30.0}
            evals.append({"images": images, "step": images, **record})
        run = {"seed": seed, "evals": evals, "final": evals[-1], "warnings": list(warnings)}
        run["conditions"] = {
            "psnr_hard": PIXELS,
            "lpips_alex_hard": {**PIXELS, "images": 8, "net": "<i>alex</i>"},
            "use_hard": {"images": 20, "tokens": 1280},
        }
        run["missing"] = {"rfid_hard": "no <network>"}
        runs.append(run)
    return {"seeds": runs, "label": label, "how": f"{label}: seen as set & measured"}


def make_results():
    return {
        "methods": {
            "softvq": make_method("SoftVQ", (25.0, 25.2, 25.4), soft=True),
            "evil": make_method(EVIL, (24.9, 25.1, 25.3), soft=False, warnings=["<b>dead</b>"]),
            "ste": make_method("STE", (23.0, 23.5, 23.1), soft=False),
        },
        "config": {"note": "</pre><b>"},
        "versions": {"torch": "2.5.1"},
        "device": "two cores",
        "commit": "abc123",
        "command": "make compare PRESET=quick && true",
        "data": "CIFAR-10 <real>",
    }


def fill_folder(folder):
    pictures = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).reshape(2, 3, 4, 4)
    save_results(folder, make_results())
    stored = {"inputs": pictures, "softvq/soft": pictures + 5}
    for name in ("softvq", "evil"):
        stored |= {
            f"{name}/hard": pictures + 9,
            f"{name}/counts": torch.tensor([3, 0, 5]),
            f"{name}/codes": torch.tensor([0, 1, 2]),
            f"{name}/tokens": torch.tensor([2, 0, 4]),
            f"{name}/patches": torch.tensor([50, 128, 200], dtype=torch.uint8)
            .reshape(3, 1, 1, 1)
            .expand(3, 3, 2, 2),
            f"{name}/vectors": torch.tensor([[0.0], [1.0], [5.0]]),
        }
    save_pictures(folder, stored)
    return folder
