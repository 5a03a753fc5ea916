"""`penstock schema ls|check|validate`: what payloads look like, on a server or in a directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from penstock.cli.options import DEFAULTS, PLAIN, Common, Output, run
from penstock.cli.output import print_json, print_line, print_table
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.client import Client

EXIT_CHECK = 3

schema = App(name="schema", help="Look at the schemas of payloads, and hold envelopes against them.")


@schema.command
def ls(*, common: Common = DEFAULTS) -> int:
    """List the schemas that the server knows.

    For example:

      penstock schema ls
    """

    async def work(client: Client) -> dict[str, Any]:
        return await client.query("schema.list")

    rows = run(common, work)["schemas"]
    if common.as_json:
        print_json({"schemas": rows})
    else:
        print_table(("schema", "versions"), [(row["name"], ", ".join(row["versions"])) for row in rows])
    return 0


@schema.command
def check(directory: Path, *, output: Output = PLAIN) -> int:
    """Check a directory of schemas as the server would when it starts; exit code 3 when something is wrong.

    For example:

      penstock schema check schemas
    """
    from penstock.server.files.schema_files import read_schemas

    shelf, problems = read_schemas(directory)
    names = sorted(str(version) for version in shelf)
    if output.as_json:
        print_json({"ok": not problems, "schemas": names, "problems": problems})
    else:
        for problem in problems:
            print_line(f"problem: {problem}")
        print_line(f"{len(names)} schemas are good")
    return EXIT_CHECK if problems else 0


@schema.command
def validate(
    file: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="A file with one envelope; `-` is standard input.")
    ],
    *,
    directory: Annotated[
        Path | None, Parameter(name="--dir", help="Ask this directory instead of the server.")
    ] = None,
    common: Common = DEFAULTS,
) -> int:
    """Hold an envelope against the schema it names, and send it nowhere; exit code 3 when it does not fit.

    For example:

      penstock schema validate envelope.json
      penstock schema validate - --dir schemas < envelope.json
    """
    envelope = _read(file)
    verdict = _judge_here(envelope, directory) if directory is not None else _judge_there(envelope, common)
    if common.as_json:
        print_json(verdict)
    elif verdict["ok"]:
        print_line(f"it fits `{verdict['against']}`")
    else:
        print_line(f"{verdict['finding']}: {verdict['message']}")
        for problem in verdict["problems"][1:]:
            print_line(f"  `{problem['path']}`: {problem['message']}")
    return 0 if verdict["ok"] else EXIT_CHECK


def _read(file: str) -> bytes:
    from penstock.dialects.courier.wire.envelopes import json_problem

    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        hint = "name a file, or `-` for standard input"
        raise PenstockError(
            Refusal("InvalidRequest", f"cannot read `{file}`: {error.strerror or error}", hint=hint)
        ) from error
    problem = json_problem(data)
    if problem is not None:
        raise PenstockError(problem)
    return data


def _judge_here(envelope: bytes, directory: Path) -> dict[str, Any]:
    from penstock.core.queue.policy import Policy
    from penstock.dialects.courier.operations.payload_schemas import Registry
    from penstock.dialects.courier.wire.envelopes import to_refusal
    from penstock.server.files.schema_files import read_schemas

    shelf, problems = read_schemas(directory)
    if problems:
        hint = "`penstock schema check` lists every problem"
        raise PenstockError(Refusal("InvalidRequest", problems[0], hint=hint))
    try:
        return Registry(shelf, lambda _: Policy()).judge(envelope)
    except msgspec.ValidationError as error:
        raise PenstockError(to_refusal(error, "InvalidEnvelope")) from error


def _judge_there(envelope: bytes, common: Common) -> dict[str, Any]:
    async def work(client: Client) -> dict[str, Any]:
        # Not as it is: a file has line breaks, and a control line has none.
        return await client.query("schema.validate", env=msgspec.json.decode(envelope))

    return run(common, work)
