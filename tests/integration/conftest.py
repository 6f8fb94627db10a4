"""A browser and a web server for tests of pages."""

import contextlib
import functools
import http.server
import shutil
import threading

import pytest
from playwright.sync_api import sync_playwright

from normscope.report import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser():
    path = next(filter(None, map(shutil.which, NAMES)), None)
    assert path, (
        "The tests of pages need a browser: install chromium (Debian: apt-get install chromium)."
    )
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield running
        running.close()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def serve(folder):
    """Serve a folder on loopback HTTP and yield its address, which is a real origin."""
    handler = functools.partial(_QuietHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="session")
def serve_folder():
    """The context manager `serve`."""
    return serve


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A function from a report to its address on loopback HTTP."""
    folder = tmp_path_factory.mktemp("served")
    with serve(folder) as address:

        def write(report):
            path = folder / f"report-{len(list(folder.iterdir()))}.html"
            write_report(report, path)
            return f"{address}/{path.name}"

        yield write
