"""The child process of `tests/object_store.py`: moto's S3 server, and a proxy before it that loses or delays answers.

Prints the port of the proxy, then reads faults from stdin, a JSON line each, and confirms them. It ends when stdin does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import sys
import threading
import time

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


class Faults:
    """What happens to the next answers."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        """Requests that the server gets, and whose answer is not sent: each a text of words that their first line contains."""
        self.delay_s = 0.0
        """How long every answer waits."""

    def claims(self, line: str) -> bool:
        """Whether the answer to a request is lost; each fault happens once."""
        found = next((text for text in self.lost if all(word in line for word in text.split())), None)
        if found is not None:
            self.lost.remove(found)
        return found is not None


def relay(client: socket.socket, port: int, faults: Faults) -> None:
    """One connection: requests go through, answers as the faults say."""
    is_lost = threading.Event()

    def forward() -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                if faults.claims(data.partition(b"\r\n")[0].decode("latin-1")):
                    is_lost.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    with client, socket.create_connection(("127.0.0.1", port)) as server, contextlib.suppress(OSError):
        threading.Thread(target=forward, daemon=True).start()
        while data := server.recv(65_536):
            if not is_lost.is_set():
                time.sleep(faults.delay_s)
                client.sendall(data)
            elif not data.startswith(b"HTTP/1.1 100"):
                break
        client.shutdown(socket.SHUT_RDWR)


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    listener = socket.create_server(("127.0.0.1", 0))
    faults = Faults()

    def accept() -> None:
        while True:
            client = listener.accept()[0]
            threading.Thread(target=relay, args=(client, server.port, faults), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        faults.lost, faults.delay_s = list(told["lost"]), told["delay_s"]
        print("ok", flush=True)


if __name__ == "__main__":
    main()
