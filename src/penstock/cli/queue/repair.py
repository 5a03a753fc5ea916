"""`penstock redrive`, `drop` and `purge`: move dead letters back, and drop envelopes that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from penstock.cli.options import DEFAULTS, Common, run
from penstock.cli.output import print_result

if TYPE_CHECKING:
    from penstock.client import Dropped, Purged, Redriven


def redrive(
    stream: str | None = None,
    *,
    id_: Annotated[
        str | None, Parameter(name="--id", help="Only the dead letter with this id, of whatever stream.")
    ] = None,
    max_: Annotated[int | None, Parameter(name="--max", help="Move at most this many.")] = None,
    common: Common = DEFAULTS,
) -> None:
    """Move the dead letters of a stream back to it, or one by its id.

    For example:

      penstock redrive jobs
      penstock redrive jobs --max 10 --json
      penstock redrive --id m-17
    """
    redriven: Redriven = run(common, lambda client: client.redrive(stream, id=id_, max=max_))
    kept = f", {redriven.kept} could not move: see `penstock explain STREAM`" if redriven.kept else ""
    print_result(redriven, f"moved {redriven.moved}, left {redriven.left}{kept}", as_json=common.as_json)


def drop(
    *,
    id_: Annotated[str, Parameter(name="--id", help="The envelope, or the dead letter.")],
    stream: Annotated[str | None, Parameter(help="Its stream; needed when several hold the id.")] = None,
    common: Common = DEFAULTS,
) -> None:
    """Drop one envelope that waits in a stream, or one dead letter. A leased envelope is not dropped.

    For example:

      penstock drop --id m-17
      penstock drop --id m-17 --stream dlq/jobs
    """
    dropped: Dropped = run(common, lambda client: client.drop(id_, stream=stream))
    print_result(dropped, f"dropped {id_}", as_json=common.as_json)


def purge(stream: str, *, common: Common = DEFAULTS) -> None:
    """Drop every envelope that waits in a stream. Leased envelopes and dead letters stay.

    For example:

      penstock purge jobs
      penstock purge dlq/jobs --json
    """
    purged: Purged = run(common, lambda client: client.purge(stream))
    print_result(purged, f"dropped {purged.purged} envelopes of {stream}", as_json=common.as_json)
