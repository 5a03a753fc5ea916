"""An HTTP server that gives exactly the answers that a test scripts, for proxies and faults that a real server cannot produce."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec


class Scripted(NamedTuple):
    """An answer; status 0 closes the connection without one."""

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})


class Asked(NamedTuple):
    """A request as it came."""

    method: str
    path: str
    token: str | None
    body: Any


class ScriptedHttp:
    """Answers by the path without its query, or in the order of a list; the last one again and again."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: dict[str, list[Scripted]] = {}
        self.url = ""

    def script(self, path: str, *answers: Scripted) -> None:
        self.answers[path] = list(answers)

    def take(self, asked: Asked) -> Scripted:
        self.asked.append(asked)
        answers = self.answers[asked.path.partition("?")[0]]
        return answers.pop(0) if len(answers) > 1 else answers[0]


@contextmanager
def scripted_http() -> Iterator[ScriptedHttp]:
    made = ScriptedHttp()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = msgspec.json.decode(data) if data else None
            answer = made.take(Asked(self.command, self.path, self.headers.get("Authorization"), body))
            if not answer.status:
                self.close_connection = True
                return
            text = answer.body if isinstance(answer.body, bytes) else msgspec.json.encode(answer.body)
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 - names of the library

        def log_message(self, *_: Any) -> None:
            return None

    # Not an `HTTPServer`, which looks its own name up.
    server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.005})
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
