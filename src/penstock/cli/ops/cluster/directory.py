"""`penstock cluster import` and `export`: divide the journal of a data directory into shards, and join it again."""
# size: two commands that call one module

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from penstock.cli.options import PLAIN, Output, flag
from penstock.cli.output import print_result

if TYPE_CHECKING:
    from penstock.server.journal.shard_migration import MigrationReport

Data = Annotated[Path, Parameter(help="The data directory; its server must be stopped.")]
ConfigFile = Annotated[Path | None, Parameter(help="The server's config file, for its limits and retention.")]
Dry = Annotated[bool, flag("Only count what would be moved.")]


def import_(data: Data, /, *, config: ConfigFile = None, dry_run: Dry = False, output: Output = PLAIN) -> None:
    """Divide the journal of a data directory into 16 shards, for `penstock up --cells N`.

    Unsettled envelopes keep their numbers, attempts and delays. History stays
    in the table `events` under the old journal's id. A command that was
    interrupted is run again.

    For example:

      penstock cluster import penstock-data --dry-run
      penstock cluster import /var/lib/penstock --config penstock.yaml
    """
    from penstock.server.journal.shard_migration import divide

    _print(divide(data, config, is_dry=dry_run), "divided", dry_run, output)


def export(data: Data, /, *, config: ConfigFile = None, dry_run: Dry = False, output: Output = PLAIN) -> None:
    """Join the shards of a data directory into one journal, for `penstock up` without --cells.

    For example:

      penstock cluster export penstock-data --dry-run
      penstock cluster export /var/lib/penstock
    """
    from penstock.server.journal.shard_migration import join

    _print(join(data, config, is_dry=dry_run), "joined", dry_run, output)


def _print(report: MigrationReport, verb: str, is_dry: bool, output: Output) -> None:
    import msgspec

    verb = f"would be {verb}" if is_dry else verb
    lines = [f"{report.envelopes} envelopes in {report.streams} streams, {report.ids} remembered ids: {verb}"]
    lines += [f"shard {shard}: {count} envelopes" for shard, count in sorted(report.shards.items())]
    lines += [f"{path} is kept; delete it when you need it no more" for path in report.kept]
    print_result({**msgspec.to_builtins(report), "dryRun": is_dry}, lines, as_json=output.as_json)
