from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pooch
import pytest
from tests.unit.data.synthetic import SmallData

import normscope as ns
from normscope.data import fetch, mnist
from normscope.data.collection import COLLECTIONS, download_root
from normscope.errors import DataError


class Server:
    """A local web server: ``files`` by path are what it sends, ``asked`` what was wanted."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.cut = 0  # bytes promised in the header and never sent
        self.elsewhere = ""  # where every request is redirected to
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append(self.path)
                content = owner.files.get(self.path)
                if owner.elsewhere:
                    self.send_response(302)
                    self.send_header("Location", owner.elsewhere)
                else:
                    self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write((content or b"")[: len(content or b"") - owner.cut])

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server(small: SmallData, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with the small MNIST below /second/, and a collection with two mirrors on it."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Server()
    packed = {f"{part}.gz": gzip.compress(raw) for part, raw in small.mnist.items()}
    server.files = {f"/second/{name}": content for name, content in packed.items()}
    collection = dataclasses.replace(
        mnist.MNIST,
        downloads={name: hashlib.sha256(raw).hexdigest() for name, raw in packed.items()},
        mirrors=(f"{server.address}/first/", f"{server.address}/second/"),
    )
    monkeypatch.setattr(mnist, "MNIST", collection)
    monkeypatch.setitem(COLLECTIONS, "mnist", collection)
    yield server
    server.close()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_load_downloads_from_the_next_mirror_when_one_fails(server: Server) -> None:
    data = ns.data.load("mnist")
    assert data.train.x.shape == (40, 1, 28, 28)
    assert ns.data.path("mnist") == download_root() / "mnist"
    assert names_in(download_root() / "mnist") == sorted(mnist.MNIST.downloads)
    assert len(server.asked) == 8


def test_load_downloads_once(server: Server) -> None:
    ns.data.load("mnist")
    before = len(server.asked)
    ns.data.load("mnist")
    assert ns.data.download("mnist") == download_root() / "mnist"
    assert len(server.asked) == before


def test_download_takes_up_what_an_interrupted_one_left(server: Server) -> None:
    ns.data.download("mnist")
    (download_root() / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    server.asked.clear()
    assert len(ns.data.load("mnist").test.x) == 20
    assert server.asked == [f"/{n}/t10k-labels-idx1-ubyte.gz" for n in ("first", "second")]


def test_download_replaces_a_damaged_file(server: Server) -> None:
    ns.data.download("mnist")
    path = download_root() / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="cannot be used"):
        ns.data.load("mnist")
    ns.data.download("mnist")
    assert len(ns.data.load("mnist").test.x) == 20


def test_wrong_digest_is_refused_and_the_next_mirror_tried(server: Server) -> None:
    server.files.update({path.replace("second", "first"): b"bad" for path in server.files})
    assert len(ns.data.load("mnist").test.x) == 20


@pytest.mark.parametrize("fault", ["absent", "wrong", "cut short"])
def test_failure_says_where_to_put_the_files_and_leaves_nothing(server: Server, fault: str) -> None:
    if fault == "cut short":
        server.cut = 10
    else:
        server.files = dict.fromkeys(server.files, b"bad") if fault == "wrong" else {}
    with pytest.raises(DataError) as caught:
        ns.data.load("mnist")
    message = str(caught.value)
    folder = download_root() / "mnist"
    assert f"by hand into {folder}" in message
    assert "$NORMSCOPE_DATA" in message
    assert "HTTP status 404" in message
    assert ("official sha256" in message) == (fault == "wrong")
    assert "\n" not in message
    assert not folder.exists() or names_in(folder) == []


def test_unreachable_mirrors_are_one_error(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.close()
    with pytest.raises(DataError, match="could not be downloaded") as caught:
        ns.data.load("mnist")
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(server, "close", lambda: None)


def test_download_folder_that_cannot_be_written_is_one_error(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "mnist").write_text("a file in the way")
    with pytest.raises(DataError, match="could not be downloaded"):
        ns.data.download("mnist", root=tmp_path)


def test_download_into_a_root_is_found_there(server: Server, tmp_path: Path) -> None:
    assert ns.data.download("mnist", root=tmp_path) == tmp_path / "mnist"
    assert len(ns.data.load("mnist", root=tmp_path).train.x) == 40
    assert not download_root().exists()


def test_download_leaves_files_of_the_data_folder_alone(
    server: Server, small: SmallData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small.write_mnist(tmp_path / "variable")
    monkeypatch.setenv("NORMSCOPE_DATA", str(folder))
    assert ns.data.download("mnist") == folder
    assert server.asked == []


def test_mirrors_are_asked_over_https_only(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(pooch, "create", lambda **options: asked.append(options["base_url"]))
    mirrors = ("http://example.org/mnist/", "ftp://example.org/mnist/")
    collection = dataclasses.replace(mnist.MNIST, mirrors=mirrors)
    monkeypatch.setitem(COLLECTIONS, "mnist", collection)
    with pytest.raises(DataError, match=r"http://example\.org is not https"):
        ns.data.download("mnist")
    assert asked == []


def test_redirection_to_plain_http_is_not_followed(server: Server) -> None:
    server.elsewhere = "http://example.org/elsewhere"
    with pytest.raises(DataError, match=r"http://example\.org is not https"):
        ns.data.download("mnist")


def test_embedded_data_need_no_download() -> None:
    assert ns.data.download("digits") is None


def test_download_restores_the_level_of_pooch_messages(server: Server) -> None:
    before = pooch.get_logger().level
    ns.data.download("mnist")
    assert pooch.get_logger().level == before


def test_download_draws_a_bar_on_a_terminal_only(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ns.data.download("mnist")
    assert capsys.readouterr() == ("", "")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal: Any = Terminal()
    monkeypatch.setattr(fetch.sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    (download_root() / "mnist" / "train-images-idx3-ubyte.gz").unlink()
    ns.data.download("mnist")
    assert "train-images-idx3-ubyte.gz" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_pinned_downloads_fit_the_parts() -> None:
    for name in ("mnist", "cifar10"):
        ns.data.parts(name)
        collection = COLLECTIONS[name]
        assert all(mirror.endswith("/") for mirror in collection.mirrors)
        assert all(mirror.startswith("https://") for mirror in collection.mirrors)
        assert all(len(digest) == 64 for digest in collection.downloads.values())
        accepted = {layout.archive for layout in collection.layouts} | {
            file
            for layout in collection.layouts
            for names in layout.files.values()
            for file in names
        }
        assert set(collection.downloads) <= accepted
