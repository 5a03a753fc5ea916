"""The peer of `penstock bench relay`: libzmq's proxy between PULL and XPUB, which knows no topics and keeps nothing.

python benches/zmq_proxy.py ipc|tcp      # prints its endpoints as JSON and runs until it is ended; ipc is in this folder
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import zmq

HWM = 100_000


def main(transport: str) -> None:
    context = zmq.Context()
    sockets = {"pub": context.socket(zmq.XPUB), "pull": context.socket(zmq.PULL)}
    for name, socket in sockets.items():
        socket.sndhwm = socket.rcvhwm = HWM
        socket.bind(f"ipc://{Path.cwd() / name}" if transport == "ipc" else "tcp://127.0.0.1:*")
    ends = {name: socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0") for name, socket in sockets.items()}
    print(json.dumps(ends), flush=True)
    zmq.proxy(sockets["pull"], sockets["pub"])


if __name__ == "__main__":
    main(*sys.argv[1:])
