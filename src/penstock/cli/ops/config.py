"""`penstock config check|show|doc|reload`."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from penstock.cli.history.journal import DATA_DEFAULT, DataOption, server_on
from penstock.cli.options import EXIT_CHECK, PLAIN, Output, print_text
from penstock.cli.output import print_json, print_line, print_result
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.ipc.pipeline import PipelineSection
    from penstock.server.config.load import Config


File = Annotated[
    Path | None,
    Parameter(name="--config", help="The YAML file; default: the file of COURIER_CONFIG, or built-in defaults."),
]


def check(file: File = None, *, output: Output = PLAIN) -> int:
    """Check a config file and print every error with its location and a hint; the exit code is 3 if there are any.

    For example:

      penstock config check penstock.yaml
    """
    config, problems = load_config(file)
    notices = list(config.notices) if config is not None else []
    if config is not None:
        problems = list(_pipeline_problems(config.pipeline, notices))
    lines = [f"problem: {problem}" for problem in problems] + [f"notice: {notice}" for notice in notices]
    lines += [] if problems else ["the config is valid"]
    print_result({"ok": not problems, "problems": problems, "notices": notices}, lines, as_json=output.as_json)
    return EXIT_CHECK if problems else 0


def show(file: File = None, *, output: Output = PLAIN) -> int:
    """Print the effective config: defaults, file and environment merged, secrets masked.

    For example:

      penstock config show penstock.yaml
    """
    config, problems = load_config(file)
    if config is None:
        if output.as_json:
            print_json({"error": {"code": "InvalidConfig", "message": "; ".join(problems)}})
        for problem in problems:
            sys.stderr.write(f"error: InvalidConfig: {problem}\n")
        sys.stderr.write("hint: see `penstock config doc` for every setting\n")
        return 1
    from penstock.server.config.reference import to_yaml

    text = to_yaml(config)
    if output.as_json:
        import yaml

        print_json(yaml.safe_load(text))
    else:
        sys.stdout.write(text)
    return 0


def doc(*, output: Output = PLAIN) -> None:
    """Print the reference of every setting, as Markdown.

    For example:

      penstock config doc > settings.md
    """
    from penstock.server.config.reference import reference

    print_text(reference(), "markdown", output)


def reload(place: DataOption = DATA_DEFAULT) -> None:
    """Make the server on a data directory reload its config. An invalid config changes nothing.

    For example:

      penstock config reload
      penstock config reload --data /var/lib/penstock --json
    """
    from penstock.client.admin import RemoteServer

    server = server_on(place.data)
    if server is None:
        raise PenstockError(Refusal("Unreachable", f"no server runs on `{place.data}`"))
    report = RemoteServer(*server).reload()
    if place.as_json:
        print_json(report)
        return
    print_line(f"changed: {', '.join(report['changed']) or 'nothing'}")
    if report["restart"]:
        print_line(f"after a restart: {', '.join(report['restart'])}")
    if report["closed"]:
        print_line(f"connections closed: {report['closed']}")


def _pipeline_problems(pipeline: PipelineSection, notices: list[str]) -> Iterator[str]:
    """Load the user's tables and queries, which needs no JVM."""
    if not (pipeline.tables or pipeline.queries):
        return
    if importlib.util.find_spec("pyspark") is None:
        notices.append("pipeline: its files are not checked, because pyspark is not installed here")
        return
    from penstock.spark.pipeline.own_tables import marked_tables
    from penstock.spark.pipeline.queries import QueryError, load_queries
    from penstock.spark.pipeline.steps import StepError

    known: dict[str, Path] = {}
    for number, table_file in enumerate(pipeline.tables):
        try:
            marked_tables(Path(table_file), known)
        except StepError as error:
            yield f"pipeline.tables[{number}]: {error}"
    try:
        load_queries(pipeline.queries)
    except QueryError as error:
        yield f"pipeline.queries: {error}"


def load_config(file: Path | None) -> tuple[Config | None, list[str]]:
    """The effective config, or its errors."""
    from penstock.server.config.load import ConfigError, load

    try:
        return load(file, os.environ), []
    except ConfigError as error:
        return None, error.errors
