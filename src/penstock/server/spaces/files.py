"""The spaces of a config with their files: invited tokens, output logs, gateway logs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from penstock.core.clock import Now
from penstock.dialects.mew.rights import Decision
from penstock.server.auth.tokens import TokenStore
from penstock.server.config.spaces.files import LoadedSpace, write_invited_token
from penstock.server.logging import logs
from penstock.server.logging.gateway_logs import GatewayLogs, OutputLog, Transport
from penstock.server.spaces.host import Spaces
from penstock.server.spaces.pollers import FileSink


def _transport(kind: str) -> Transport:
    """The upstream name of a transport."""
    if kind in ("http", "polling"):
        return "http"
    return "websocket" if kind == "websocket" else "virtual"


class _Watch:
    """Has everything that passes written to a gateway's files."""

    def __init__(self, files: GatewayLogs) -> None:
        self._files = files

    def received(self, now: Now, envelope: bytes, id_: str, participant: str, space: str, transport: str) -> None:
        self._files.received(now.wall_us, envelope, id_ or None, participant, space, _transport(transport))

    def delivered(
        self, now: Now, envelope: bytes, id_: str, participants: Iterable[tuple[str, str]], space: str
    ) -> None:
        by_transport: dict[str, list[str]] = {}
        for participant, kind in participants:
            by_transport.setdefault(_transport(kind), []).append(participant)
        for transport, names in by_transport.items():
            self._files.delivered(now.wall_us, envelope, id_ or None, names, space, _transport(transport))

    def rejected(
        self, now: Now, envelope: bytes, id_: str, participant: str, space: str, transport: str, reason: str
    ) -> None:
        self._files.rejected(now.wall_us, envelope, id_, participant, space, _transport(transport), reason)

    def decided(self, now: Now, decision: Decision) -> None:
        self._files.decided(
            now.wall_us,
            decision.envelope,
            decision.participant,
            decision.space,
            decision.source is not None,
            decision.kind,
            decision.matched,
            decision.source,
            decision.held,
            _transport(decision.transport),
            decision.correlation,
        )


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
            files = GatewayLogs.from_environment(directory, os.environ, section)
            self._files.append(files)
            watch = _Watch(files)

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

    @property
    def dropped(self) -> int:
        """Lines of files that were not written."""
        return sum(files.dropped for files in self._files)

    def close(self) -> None:
        for files in self._files:
            files.close()
