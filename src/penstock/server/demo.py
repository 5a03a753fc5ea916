"""The sample traffic of `penstock up --demo`, in a process of its own that goes with the server."""

from __future__ import annotations

import asyncio
import os
import sys

STOP_S = 3.0


class DemoProcess:
    """Runs `penstock.client.demo` against a door."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url
        self._token = token
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        more = {"PENSTOCK_TOKEN": self._token} if self._token else {}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "penstock.client.demo",
            self._url,
            env={**os.environ, **more},
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
