"""`penstock lake erase`: remove what agents, conversations or envelopes left in the journal and in the tables.

A file holds the erasure until it is complete, and the journal a row that says that rows were erased, and how many.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from penstock.cli.history.journal import DATA_DEFAULT, DataOption, reading
from penstock.cli.options import flag
from penstock.cli.output import is_confirmed, print_note, print_result
from penstock.cli.tables import pipeline_session
from penstock.cli.tables.lake import speaking
from penstock.cli.tables.pipeline import ConfigFile
from penstock.core.errors import PenstockError, Refusal
from penstock.core.names import agent_problem
from penstock.core.records import Entry
from penstock.ipc.pipeline import STATUS_FILE, WORKSHOP
from penstock.journal.disk import RealDisk
from penstock.journal.lake_location import lake_of, remove_tree
from penstock.journal.open_and_repair import ERASURE, replace_file
from penstock.journal.seal import write_live
from penstock.server.journal.lifecycle import seal_directory
from penstock.spark.lake.catalog import open_table
from penstock.spark.lake.erasure import Erasure, bury, find, survivors
from penstock.spark.pipeline.erasure import COMBINED, look, recompute, scrub, split
from penstock.spark.pipeline.journal_group import app_of
from penstock.spark.pipeline.process import LOCK

NOT_COVERED = (
    "backups, and snapshots or old object versions of the disk or bucket",
    "copies that consumers, remote readers and exports made, and checkpoints of your own queries",
    "logs of the server, of gateways and of agents",
    "the config, and tokens that name an agent: `penstock token revoke`",
    "text that names the agent in envelopes of others: erase these by --id",
)


def erase(
    *,
    agent: Annotated[list[str] | None, Parameter(help="An agent: what it sent, received and settled.")] = None,
    corr: Annotated[list[str] | None, Parameter(help="A conversation, by its correlation id.")] = None,
    id_: Annotated[list[str] | None, Parameter(name="--id", help="An envelope.")] = None,
    dry_run: Annotated[bool, flag("Count the rows of each table, and change nothing.")] = False,
    yes: Annotated[bool, flag("Do not ask.")] = False,
    config: ConfigFile = None,
    place: DataOption = DATA_DEFAULT,
) -> int:
    """Erase agents, conversations or envelopes from the journal and the tables, for good. The server must be stopped.

    Rows of the journal become tombstones, tables are computed again without them, and every older version of the
    tables is removed at once. Envelopes that are not settled are refused. --agent, --corr and --id may be repeated.
    Your own tables are rebuilt if --config names them. After a crash, run it again.

    For example:

      penstock lake erase --agent sam --dry-run
      penstock lake erase --agent sam --config penstock.yaml
      penstock lake erase --corr order-17 --id m-4 --yes --json
    """
    for problem in filter(None, map(agent_problem, agent or ())):
        raise PenstockError(problem)
    file, erasure = place.data / "journal" / ERASURE, Erasure()
    if file.exists():
        erasure = msgspec.json.decode(file.read_bytes(), type=Erasure)
        print_note(f"an erasure was interrupted: {'the next one' if dry_run else 'this one'} completes it")
    for known, more in ((erasure.agent, agent), (erasure.corr, corr), (erasure.id, id_)):
        known.update(more or ())
    if not erasure.agent | erasure.corr | erasure.id:
        hint = "pass --agent NAME, --corr ID or --id ID; --dry-run shows what each would erase"
        raise PenstockError(Refusal("InvalidRequest", "there is nothing to erase", hint=hint))
    notice = f"this removes rows from the journal and the tables of `{place.data}` for good; --dry-run counts them"
    if not dry_run and not is_confirmed(notice, yes=yes):
        print_note("nothing was erased")
        return 1
    result: dict[str, Any] = {"dryRun": dry_run, "notCovered": list(NOT_COVERED)}
    with reading(), speaking():
        if dry_run:
            find(place.data, erasure)
            result["rows"] = look(lake_of(place.data), erasure)
        else:
            seal_directory(place.data, config, lambda disk: _erase(place.data, config, erasure, disk, result))
            file.unlink(missing_ok=True)
    lines = [f"{name}: {count} rows {'would be ' if dry_run else ''}erased" for name, count in result["rows"].items()]
    print_result(result, lines + [f"not covered: {one}" for one in result["notCovered"]], as_json=place.as_json)
    return 0


def _erase(data: Path, config: Path | None, erasure: Erasure, disk: RealDisk, result: dict[str, Any]) -> Entry:
    """Spark starts before anything changes. Then each step is durable before the next, and can be repeated. Returns the journal's row."""
    lake = lake_of(data)
    alone = pipeline_session.alone
    with alone(data, LOCK, "runs the pipeline"), alone(data, WORKSHOP, "fills tables"):
        remove_tree(lake / WORKSHOP)  # of a rebuild that was interrupted
        find(data, erasure)
        result["rows"] = look(lake, erasure)
        live = survivors(disk, erasure)
        if not (live or any(result["rows"].values()) or (data / "journal" / ERASURE).exists()):
            raise PenstockError(
                Refusal("UnknownEnvelope", "nothing matches", hint="nothing was erased; check the names")
            )
        built_in, own = split(lake)
        needs_spark = {*built_in} & {*COMBINED} or (own and config)
        with pipeline_session.open_tables([data], None, config) if needs_spark else nullcontext() as ingest:
            if live:
                write_live(disk, *live)
            replace_file(disk, ERASURE, [msgspec.json.encode(erasure)])
            bury(data, erasure)
            scrub(lake, erasure)
            left = own if ingest is None else recompute(ingest, erasure, own)
        for name in (*built_in, *(name for name in own if name not in left)):
            open_table(lake, name).purge(map(app_of, erasure.doomed))
        (data / "run" / STATUS_FILE).unlink(missing_ok=True)  # it may quote rows
    for name in (name for name in (*built_in, *own) if name in left):
        fix = f"backfill {name}` after you delete it" if name in own else f"rebuild {name} --journal DIR` for each DIR"
        result["notCovered"].append(f"the table `{name}`, which is not computed again: run `penstock pipeline {fix}")
    return Entry("server", "erased", "", meta=erasure.record(), fresh=False)
