"""Who the server answers: one machine, one token, GET alone."""

import base64
import hashlib
import http.client
import json
import re
import socket
import threading
import time

import pytest
import xarray as xr

from normscope.errors import StateError
from normscope.results import Store
from normscope.watch import Board, serve
from normscope.watch.server import Server


@pytest.fixture
def server(tmp_path):
    with Store(tmp_path / "runs.db") as store:
        key = store.add("e", {}, 0)
        store.start(key)
        store.finish(key, xr.Dataset({"loss": ("step", [1.0])}))
    with Board([tmp_path / "runs.db"], interval=0.02) as board, Server(board) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield running
        running.shutdown()


def ask(server, path=None, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    given = {"Host": f"127.0.0.1:{server.server_port}"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    connection.putrequest(method, f"/{server.token}/" if path is None else path, skip_host=True)
    for name, value in given.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = b"" if answer.headers["Content-Type"] == "text/event-stream" else answer.read()
    connection.close()
    return answer, body.decode()


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_page_is_served_with_a_policy_that_allows_its_own_parts_only(server):
    answer, body = ask(server)
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", body, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-store"
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", body)


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "127.0.0.1:65535"])
def test_any_port_of_this_machine_is_answered_as_through_a_tunnel(server, host):
    assert ask(server, Host=host)[0].status == 200
    assert ask(server, Host=host, Origin=f"http://{host}")[0].status == 200


@pytest.mark.parametrize(
    "host",
    [
        *(None, "", "example.com", "localhost.example.com", "127.0.0.1.example.com"),
        *("example.com:80", "localhost:80@example.com", "127.0.0.10", "LOCALHOST\t", "[::1]:80"),
    ],
)
def test_a_foreign_host_is_refused(server, host):
    answer, body = ask(server, Host=host)
    assert answer.status == 403
    assert "this machine" in body


@pytest.mark.parametrize(
    "origin", ["http://example.com", "null", "", "http://localhost:1", "https://127.0.0.1"]
)
@pytest.mark.parametrize("page", ["", "events"])
def test_a_foreign_origin_is_refused(server, origin, page):
    answer, body = ask(server, f"/{server.token}/{page}", Origin=origin)
    assert answer.status == 403
    assert "other pages" in body


@pytest.mark.parametrize(
    "path", ["/", "/events", "/wrong/", "/wrong/events", "//", "/%00/", "/%C3%A9/"]
)
def test_a_missing_or_wrong_token_is_refused(server, path):
    answer, body = ask(server, path)
    assert answer.status == 403
    assert "token" in body
    assert server.token not in body


def test_token_is_random_and_long(server, tmp_path):
    with Server(server.board) as other:
        assert other.token != server.token
    assert len(server.token) >= 20


def test_an_address_without_its_last_slash_is_redirected(server):
    answer, _ = ask(server, f"/{server.token}")
    assert (answer.status, answer.headers["Location"]) == (302, f"/{server.token}/")


def test_an_error_in_building_the_message_is_printed(server, monkeypatch, capfd):
    def wait(since, seconds):
        raise ValueError("not a number")

    monkeypatch.setattr(server.board, "wait", wait)
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", f"/{server.token}/events")
    assert connection.getresponse().read() == b""
    deadline = time.monotonic() + 30
    printed = ""
    while "\n" not in printed and time.monotonic() < deadline:
        printed += capfd.readouterr().err
    assert printed == "normscope: the page could not be sent (ValueError: not a number)\n"


@pytest.mark.parametrize("path", ["x", "..", "../../etc/passwd", "events/more"])
def test_there_are_two_pages_only(server, path):
    assert ask(server, f"/{server.token}/{path}")[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW"])
def test_only_get_is_answered(server, method):
    answer, _ = ask(server, method=method)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET"


def test_events_are_strict_json_and_the_program_does_not_name_its_version(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", f"/{server.token}/events")
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert answer.headers["Server"] == "normscope"
    line = answer.fp.readline().decode()
    assert line.startswith("data: ")
    message = json.loads(line[6:])
    assert message["order"][0] == "s0"
    connection.close()


def test_streams_are_limited_and_freed(server, monkeypatch):
    server.streams = threading.BoundedSemaphore(1)
    first = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    first.request("GET", f"/{server.token}/events")
    stream = first.getresponse()
    assert stream.status == 200
    assert ask(server, f"/{server.token}/events")[0].status == 503
    stream.close()
    first.close()
    server.board.close()  # ends the stream
    assert server.streams.acquire(timeout=60)


def test_idle_connections_are_bounded_and_do_not_keep_a_page_out(server):
    before = threading.active_count()
    idle = [
        socket.create_connection(("127.0.0.1", server.server_port), timeout=60) for _ in range(300)
    ]
    assert ask(server)[0].status == 200
    assert threading.active_count() - before < 100
    assert idle[0].recv(1) == b""  # the oldest was closed
    idle[-1].sendall(f"GET /{server.token}/ HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert idle[-1].recv(15) == b"HTTP/1.1 200 OK"  # the newest was not
    for each in idle:
        each.close()
    wait_until(lambda: threading.active_count() <= before)


def test_two_hundred_streams_leave_room_for_pages(server):
    before = threading.active_count()
    streams = []
    for _ in range(200):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.request("GET", f"/{server.token}/events")
        streams.append((connection, connection.getresponse()))
    states = [answer.status for _, answer in streams]
    assert (states.count(200), states.count(503)) == (32, 168)
    assert threading.active_count() - before < 100
    assert ask(server)[0].status == 200
    assert all(answer.fp.readline().startswith(b"data: ") for _, answer in streams[:32])
    for connection, answer in streams:
        answer.close()
        connection.close()
    server.board.close()  # ends the streams
    wait_until(lambda: threading.active_count() <= before)


def test_malformed_requests_do_not_stop_the_server(server):
    for request in (b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET\r\n\r\n", b""):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as client:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            client.recv(1000)
    assert ask(server)[0].status == 200


def test_it_listens_on_this_machine_only(server):
    assert server.server_address[0] == "127.0.0.1"


def test_a_port_in_use_is_named(server):
    with pytest.raises(StateError, match=f"port {server.server_port} of 127.0.0.1"):
        serve(server.board, server.server_port)
