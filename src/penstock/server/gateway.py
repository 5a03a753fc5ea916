"""`penstock gateway start`: a server for one space, in place of the upstream command of the same name.

The space's own file and the flags say everything; a config file may add limits. The journal lies next to the space's tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.core.limits import Limits
from penstock.ipc.pipeline import PipelineSection
from penstock.server.assembly import Service
from penstock.server.config.load import Config, load
from penstock.server.config.sections import ListenSection, LogsSection, Sections
from penstock.server.config.spaces import space_yaml
from penstock.server.config.spaces.space_yaml import LoadedSpace, mewdir_of
from penstock.server.files.addresses import HostPort, parse_host_port
from penstock.server.files.yaml_tree import ConfigError
from penstock.server.logging import logs
from penstock.server.up import EXIT_USAGE, StartHints, drain, run, stop_signals

if TYPE_CHECKING:
    from penstock.client.address import ServerEndpoints
    from penstock.server.logging.logs import LogWriter

DATA = "penstock"
"""The journal's directory, next to `tokens` and `logs`."""
IGNORE_ALL = "*\n"
START_HINTS = StartHints("`--port PORT` (0 takes a free one)", "`--space-config`: the journal lies next to that file")


class GatewayOptions(msgspec.Struct):
    """The flags of `penstock gateway start`."""

    space_config: Path
    port: int
    host: str
    log_level: str
    auto_start: bool = True
    as_json: bool = False
    config: Path | None = None


def configure(options: GatewayOptions) -> Config:
    """The config of the flags; raises ConfigError with all errors of them and of the space's file."""
    problems: list[str] = []
    try:
        address = str(parse_host_port(str(HostPort(options.host, options.port))))
    except ValueError as error:
        address = ""
        problems.append(str(error))
    limits, more = _limits(options.config)
    problems += more
    entries, found, notices = space_yaml.check([str(options.space_config)], None, Path.cwd())
    problems += [message.removeprefix("spaces[0]: ") for _, message in found]
    if problems:
        raise ConfigError(problems)
    return Config(
        listen=ListenSection(http=address, control="off"),
        logs=LogsSection(level="warning" if options.log_level == "warn" else options.log_level),  # type: ignore[arg-type]
        pipeline=PipelineSection(enabled=False),
        limits=limits,
        spaces=entries,
        notices=tuple(notices),
        serves_courier=False,
    )


def _limits(file: Path | None) -> tuple[Limits, list[str]]:
    """The limits of a config file, and what is wrong with it. Its other sections are for `penstock up`."""
    try:
        config = Config() if file is None else load(file, {})
    except ConfigError as error:
        return Limits(), [f"`{file}`: {problem}" for problem in error.errors]
    unset = Config()
    others = [name for name in Sections.__struct_fields__ if name != "limits"]
    given = [f"`{name}`" for name in others if getattr(config, name) != getattr(unset, name)]
    refused = f"`{file}`: a gateway takes only `limits`, and the file has {', '.join(given)}; run `penstock up` with it"
    return config.limits, [refused] if given else []


def main(options: GatewayOptions) -> int:
    """Run until a signal; the exit code says how it went."""
    try:
        config = configure(options)
    except ConfigError as error:
        for problem in error.errors:
            print(f"error: {problem}", file=sys.stderr)
        print(
            "hint: the gateway does not start with a file that it cannot read whole; fix it, or name another "
            "with `--space-config`",
            file=sys.stderr,
        )
        return EXIT_USAGE
    writer = logs.setup(config.logs)
    return run(lambda: _run(config, writer, options), writer, START_HINTS)


async def _run(config: Config, writer: LogWriter, options: GatewayOptions) -> int:
    data = mewdir_of(options.space_config) / DATA
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    ignored = data / ".gitignore"
    if not ignored.exists():
        ignored.write_text(IGNORE_ALL)
    service = Service(config, data, lambda: writer.dropped)
    stopping = stop_signals(writer)
    endpoints = await service.start()
    for notice in config.notices:
        logs.warning("config.notice", note=notice)
    (space,) = service.spaces
    if options.as_json:
        printed = {**msgspec.to_builtins(endpoints), "run": str(service.run_dir), "space": space.settings.id}
        print(msgspec.json.encode(printed).decode(), flush=True)
    else:
        _announce(endpoints, space, options)
    await stopping.wait()
    return await drain(service)


def _announce(endpoints: ServerEndpoints, space: LoadedSpace, options: GatewayOptions) -> None:
    """Print the lines of upstream's command, which scripts wait for."""
    port = endpoints.http.rpartition(":")[2]
    lines = [
        f"Space ID: {space.settings.id}",
        f"Participants configured: {len(space.settings.participants)}",
        f"Gateway listening on port {port}",
        f"Health endpoint: {endpoints.http}/health",
        f"WebSocket endpoint: ws{endpoints.http.removeprefix('http')}",
        f"Tokens: {space.mewdir / 'tokens'}",
    ]
    if space.made:
        lines.append(f"Generated new tokens for {', '.join(space.made)}")
    if options.auto_start and space.unstarted:
        lines.append(f"Participants are not started from here: start {', '.join(space.unstarted)} yourself")
    print("\n".join(lines), flush=True)
