"""The picture at the top of the README, taken of a comparison's page in Chromium.

`python -m tests.eval.photograph runs/compare-quick samples/report.png`
"""

import sys
import tempfile
from pathlib import Path

from softvq.files import replacing
from tests.eval.browser import Browser, find_chromium

WIDTH, HEIGHT = 1200, 1400


def photograph(folder, path):
    """Test pictures half-way between input and hard codes, and below them a code pointed at."""
    with tempfile.TemporaryDirectory() as profile, Browser(find_chromium(), profile) as page:
        page.open(Path(folder).resolve() / "report.html", width=WIDTH, height=HEIGHT)
        page.ask("document.getElementById('wipe').value = 0.55")
        page.ask("document.getElementById('wipe').dispatchEvent(new Event('input'))")
        for _ in range(2):
            page.ask("document.querySelector('[data-turn=\"1\"]').click()")
        page.point(".map", 0.11, 0.4)
        page.ask("document.getElementById('pictures').scrollIntoView({behavior: 'instant'})")
        with replacing(Path(path)) as beside:
            beside.write_bytes(page.picture())


if __name__ == "__main__":
    photograph(*sys.argv[1:])
