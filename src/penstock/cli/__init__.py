"""The command line: `main` parses, runs one command, and turns every failure into an exit code.

Commands load when they are called, each from its own file, so `penstock stats` never imports the server.
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 a check failed, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from penstock.cli.output import print_error, print_usage_error
from penstock.core.errors import PenstockError
from penstock.hide_pandas import hide_pandas

EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_CHECK, EXIT_INTERRUPTED = 0, 1, 2, 3, 130

_COMMANDS = {
    "up": ("ops.up", "Run the server."),
    "gateway": ("ops.up:gateway", "Run a MEW space alone."),
    "stdio": ("ops.up:stdio", "Speak Control v1 on stdin and stdout."),
    "pipe": ("ops.up:pipe", "Carry Control v1 over Stream Kernel pipes."),
    "send": ("queue.inbox:send", "Send a message to an agent."),
    "inbox": ("queue.inbox", "Take messages from an agent's inbox."),
    "done": ("queue.inbox:done", "Settle a message from an inbox."),
    "enqueue": ("queue.enqueue", "Put envelopes into a stream."),
    "subscribe": ("queue.inbox:subscribe", "Print deliveries of a stream as they arrive."),
    "stats": ("queue.inspect:stats", "Show the figures of one stream, or of all."),
    "top": ("ops.top", "Show the broker's figures and rates, refreshed."),
    "snapshot": ("queue.inspect:snapshot", "Print the rows of a view, and follow its changes."),
    "peek": ("queue.inspect:peek", "Show envelopes without taking them."),
    "where": ("queue.inspect:where", "Find an envelope by its id."),
    "explain": ("queue.inspect:explain", "Explain why a stream flows or does not."),
    "redrive": ("queue.repair:redrive", "Send dead letters back to their stream."),
    "drop": ("queue.repair:drop", "Drop one envelope that waits, or one dead letter."),
    "purge": ("queue.repair:purge", "Drop every envelope that waits in a stream."),
    "space": ("spaces.space", "Inspect MEW spaces and take part in them."),
    "trigger": ("queue.trigger", "List, explain, try and change triggers."),
    "log": ("history.log", "Inspect the journal: files, rows, integrity, sealing, readers."),
    "tail": ("history.log:tail", "Print rows of the journal as they are committed."),
    "replay": ("history.replay", "Enqueue a part of the journal again."),
    "export": ("history.replay:export", "Write rows of the journal to a file."),
    "import": ("history.replay:import_", "Enqueue the envelopes of an exported file."),
    "pipeline": ("tables.pipeline", "Run and manage the Spark pipeline that fills the tables."),
    "sql": ("tables.lake:sql", "Query the tables with SQL, without Spark."),
    "lake": ("tables.lake", "Manage the tables: sizes, versions, small files, old files."),
    "token": ("ops.token", "Create, list and revoke tokens; create keys for the relay."),
    "console": ("ops.console", "Print the link to the console of the local server."),
    "schema": ("queue.schema", "List and check payload schemas, and validate envelopes."),
    "doctor": ("ops.doctor", "Check this machine and the server."),
    "cluster": ("ops.cluster.commands:cluster", "Make, watch and change a cluster; divide a data directory."),
    "backup": ("ops.backup", "Copy a data directory; the server may be running."),
    "restore": ("ops.backup:restore", "Restore a data directory from a backup."),
    "print": ("print_files:print_", "Print deployment files, alert rules, a dashboard and references."),
    "bench": ("penstock.bench:bench", "Measure the server and compare it with peers."),
    "completion": ("print_files:completion", "Print a shell completion script."),
}
"""Each command: its module below `penstock.cli`, and its line in the list of commands."""
_WITH_SPARK = (["pipeline"], ["bench"], ["lake", "erase"])
"""Commands that may run Spark in their own process, which needs pandas."""
CONFIG_COMMANDS = {
    "check": "Check a config file.",
    "show": "Print the effective config, secrets masked.",
    "doc": "Print the reference of every setting.",
    "reload": "Make the running server reload its config.",
}


def _version() -> str:
    import penstock

    return penstock.__version__


def _place(module: str) -> str:
    """The import path of a command's function, which has its module's name unless the table names another."""
    path, _, function = module.partition(":")
    path = path if path.startswith("penstock.") else f"penstock.cli.{path}"
    return f"{path}:{function or path.rpartition('.')[2]}"


def build(words: Sequence[str] = ()) -> App:
    """The parser, with every command named and none loaded.

    A command that is not called has the short text of the list; the one that is called shows its own docstring.
    """
    app = App(
        name="penstock",
        help="A message broker for agents: one journal, three protocols. Every command has --json.",
        help_format="plaintext",
        version=_version,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    for name, (module, text) in _COMMANDS.items():
        place = _place(module)
        app.command(place, name=name, help=None if name in words else text)
    config = App(name="config", help="Check, show, explain and reload the config file.")
    for name, text in CONFIG_COMMANDS.items():
        config.command(f"penstock.cli.ops.config:{name}", name=name, help=None if name in words else text)
    app.command(config)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None and not any(
        words[: len(names)] == names for names in _WITH_SPARK
    ):  # not called from another program
        hide_pandas()
    # A failure may come before the options are parsed, and must be JSON too.
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    try:
        code = build(words)(words)
        if not sys.stdout.closed:  # `stdio` hands it to the event loop, which closes it
            sys.stdout.flush()
    except CycloptsError as error:
        print_usage_error(str(error), getattr(error.__cause__, "hint", None), as_json=as_json)
        return EXIT_USAGE
    except PenstockError as error:
        print_error(error.refusal, as_json=as_json)
        return EXIT_ERROR
    except BrokenPipeError:
        # The reader closed the pipe. Python would raise again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else EXIT_OK
