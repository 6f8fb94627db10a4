"""Three pictures of `normscope watch` beside a running sweep: python docs/images/watch.py.

Needs playwright and chromium, as the tests of pages do.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from normscope.watch import Board
from normscope.watch.server import Server

FOLDER = Path(__file__).parent
SHARES = (15, 55, 100)  # percent of the cells that have ended
SIZE = {"width": 1000, "height": 680}
SWEEP = ("gamma=0.1:3:10:log", "learning_rate=1e-3:3:14:log", "width=100", "epochs=4")


def main() -> None:
    """Run the sweep and take the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "phase.sqlite"
        settings = [each for value in SWEEP for each in ("--set", value)]
        command = [sys.executable, "-m", "normscope", "sweep", "phase_diagram", *settings]
        sweep = subprocess.Popen([*command, "-o", str(path)], stdout=subprocess.DEVNULL)
        with Board([path]) as board, Server(board) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            take_pictures(server.url)
            server.shutdown()
        sweep.wait()


def take_pictures(url: str) -> None:
    """Save the page of this address whenever enough cells have ended."""
    names = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=next(names), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport=SIZE, reduced_motion="reduce")
        page.set_default_timeout(300_000)
        page.goto(url)
        for number, share in enumerate(SHARES, 1):
            page.locator(".curves .line").first.wait_for()
            while int(page.title().partition(" %")[0]) < share:
                page.wait_for_timeout(100)
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.convert("RGB").quantize(256, kmeans=1).save(
                FOLDER / f"watch_{number}.png", optimize=True
            )
        browser.close()


if __name__ == "__main__":
    main()
