"""The spaces of a config with their files: invited tokens, output logs, gateway logs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from penstock.server.auth.tokens import TokenStore
from penstock.server.config.spaces.space_yaml import LoadedSpace, write_invited_token
from penstock.server.logging import logs
from penstock.server.logging.gateway_logs import GatewayLogs, OutputLog, switches
from penstock.server.spaces.host import Spaces
from penstock.server.spaces.pollers import FileSink


class HostedSpaces:
    """The spaces of the config, and the files of each."""

    def __init__(
        self, host_spaces: Callable[..., Spaces], loaded: Sequence[LoadedSpace], tokens: TokenStore, *, keeps_logs: bool
    ) -> None:
        self._files: list[GatewayLogs | OutputLog] = []
        self._directories = {each.settings.id: each.mewdir for each in loaded}
        watch = None
        if keeps_logs and loaded:
            directory, section = loaded[0].mewdir / "logs", msgspec.to_builtins(loaded[0].logging)
            history, decisions = switches(section, os.environ)
            watch = GatewayLogs(directory, history=history, decisions=decisions)
            self._files.append(watch)

        def is_operator(token: str) -> bool:
            holder = tokens.resolve(token)
            return holder is not None and holder.operator

        self.spaces = host_spaces(is_operator=is_operator, watch=watch, keep_token=self._keep_token, log=logs.event)
        for each in loaded:
            space = self.spaces.add(each.settings)
            for name, settings in each.settings.participants.items():
                if settings.output_log is not None:
                    lines = OutputLog(Path(settings.output_log))
                    self._files.append(lines)
                    self.spaces.give_sink(space, name, FileSink(lines), is_present=settings.auto_connect)

    def serve_at(self, host: str, port: int) -> None:
        """Participants connect there; the first address counts."""
        shown = "localhost" if host in ("0.0.0.0", "::", "127.0.0.1", "::1") else host
        for space in self.spaces.spaces.values():
            space.url = space.url or f"ws://{f'[{shown}]' if ':' in shown else shown}:{port}/"

    def _keep_token(self, space: str, participant: str, token: str) -> None:
        """Write the token of an invited participant where its peers look for it."""
        try:
            write_invited_token(self._directories[space], participant, token)
        except (OSError, ValueError) as error:  # the id may be too long for the name of a file
            logs.warning("space.token_not_written", space=space, participant=participant, reason=str(error))

    def close(self) -> None:
        for files in self._files:
            files.close()
