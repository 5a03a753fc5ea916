"""`penstock schema ls|check|validate`: payload schemas of a server or a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from penstock.cli.options import DEFAULTS, EXIT_CHECK, PLAIN, Common, Output, open_input, run
from penstock.cli.output import print_json, print_line, print_result, print_rows
from penstock.core.errors import PenstockError, Refusal

schema = App(name="schema", help="List and check payload schemas, and validate envelopes.")


@schema.command
def ls(*, common: Common = DEFAULTS) -> None:
    """List the schemas of the server.

    For example:

      penstock schema ls
    """

    rows = run(common, lambda client: client.schemas())
    cells = [(row["name"], ", ".join(row["versions"])) for row in rows]
    print_rows({"schemas": rows}, ("schema", "versions"), cells, as_json=common.as_json)


@schema.command
def check(directory: Path, *, output: Output = PLAIN) -> int:
    """Check a directory of schemas as the server does at its start; the exit code is 3 if one is invalid.

    For example:

      penstock schema check schemas
    """
    from penstock.server.files.schema_files import read_schemas

    shelf, problems = read_schemas(directory)
    names = sorted(str(version) for version in shelf)
    lines = [*(f"problem: {problem}" for problem in problems), f"{len(names)} schemas are valid"]
    print_result({"ok": not problems, "schemas": names, "problems": problems}, lines, as_json=output.as_json)
    return EXIT_CHECK if problems else 0


@schema.command
def validate(
    file: Annotated[str, Parameter(allow_leading_hyphen=True, help="A file with one envelope; `-` is standard input.")],
    *,
    directory: Annotated[Path | None, Parameter(name="--dir", help="Use this directory instead of the server.")] = None,
    common: Common = DEFAULTS,
) -> int:
    """Validate an envelope with the schema that it names, without sending it; the exit code is 3 if it is invalid.

    For example:

      penstock schema validate envelope.json
      penstock schema validate - --dir schemas < envelope.json
    """
    envelope = _read(file)
    if directory is not None:
        verdict = _judge(envelope, directory)
    else:  # Encoded again: a file may have line breaks, and a control line may not.
        verdict = run(common, lambda client: client.validate(msgspec.json.decode(envelope)))
    if common.as_json:
        print_json(verdict)
    elif verdict["ok"]:
        print_line(f"valid by `{verdict['against']}`")
    else:
        print_line(f"{verdict['finding']}: {verdict['message']}")
        for problem in verdict["problems"][1:]:
            print_line(f"  `{problem['path']}`: {problem['message']}")
    return 0 if verdict["ok"] else EXIT_CHECK


def _read(file: str) -> bytes:
    from penstock.dialects.courier.wire.envelopes import json_problem

    with open_input(file) as source:
        data = source.read()
    problem = json_problem(data)
    if problem is not None:
        raise PenstockError(problem)
    return data


def _judge(envelope: bytes, directory: Path) -> dict[str, Any]:
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
