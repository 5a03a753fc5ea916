"""`penstock trigger ls|explain|put|rm|try`: the triggers of a running server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from penstock.cli.options import DEFAULTS, Common, run
from penstock.cli.output import compact, print_json, print_line, print_result, print_rows, print_table
from penstock.core.errors import PenstockError, Refusal

trigger = App(name="trigger", help="List, explain, try and change triggers.")

SHOWN = ("run", "emitted", "fail", "suppressed", "looped", "hops", "blocked")


def _ask(common: Common, op: str, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = run(common, lambda client: client.trigger(op, **fields))
    return answer


def _read(file: Path) -> Any:
    from penstock.server.files import yaml_tree

    hint = "name a file that holds YAML or JSON, as docs/how-to/triggers.md shows"
    try:
        tree = yaml_tree.parse(yaml_tree.read_text(file))
        problems = [yaml_tree.format_error(*error, tree.lines) for error in tree.errors]
    except yaml_tree.ConfigError as error:
        problems = error.errors
    else:
        problems = [f"`{file}`: {problem}" for problem in problems]
    if problems:
        raise PenstockError(Refusal("InvalidRequest", problems[0], hint=hint))
    return tree.value


@trigger.command
def ls(*, common: Common = DEFAULTS) -> None:
    """List the triggers, in the order of evaluation.

    For example:

      penstock trigger ls
    """
    answer = _ask(common, "ls")
    rows = [
        [row["id"], row["hook"], row["origin"], row["state"], *(row["counters"][name] for name in SHOWN)]
        for row in answer["triggers"]
    ]
    print_rows(answer, ("trigger", "hook", "origin", "state", *SHOWN), rows, as_json=common.as_json)


@trigger.command
def explain(rule: str, *, common: Common = DEFAULTS) -> None:
    """Explain a trigger: its condition, its recent actions, and why it does not fire.

    For example:

      penstock trigger explain trig.jen.log.notify.architect
    """
    answer = _ask(common, "explain", id=rule)
    if common.as_json:
        print_json(answer)
        return
    print_line(f"{rule} is {answer['state']}; {answer['hook']}, from the {answer['origin']}")
    print_line(f"  when {compact(answer['rule']['when'])}")
    for action in answer["rule"]["do"]:
        print_line(f"  do   {compact(action)}")
    for reason in answer["reasons"]:
        print_line(f"  {reason['code']}: {reason['message']}" + (f" ({reason['count']})" if "count" in reason else ""))
    print_table(
        ("at", "stream", "id", "sent or failed"),
        [
            [one["at"], one.get("stream"), one.get("id"), compact(one.get("failures") or one.get("sent"))]
            for one in answer["recent"]
        ],
    )


@trigger.command
def put(file: Path, *, common: Common = DEFAULTS) -> None:
    """Add triggers from a YAML or JSON file; each replaces the one with the same id.

    For example:

      penstock trigger put rules.yaml
    """
    found = _read(file)
    rules = found if isinstance(found, list) else [found]
    answers = [_ask(common, "put", rule=rule) for rule in rules]
    lines = [f"{answer['id']} is {'new' if answer['created'] else 'replaced'}" for answer in answers]
    print_result({"triggers": answers}, lines, as_json=common.as_json)


@trigger.command
def rm(rule: str, *, common: Common = DEFAULTS) -> None:
    """Remove a trigger that was added at run time.

    For example:

      penstock trigger rm my.rule
    """
    answer = _ask(common, "remove", id=rule)
    text = f"{rule} is removed" + ("; the one of the config file applies again" if answer["config"] else "")
    print_result(answer, text, as_json=common.as_json)


@trigger.command(name="try")
def try_(
    to: str, file: Annotated[Path, Parameter(help="A file with the envelope, as JSON.")], *, common: Common = DEFAULTS
) -> None:
    """Show what each trigger would do with an envelope, or why it would not fire; nothing is sent.

    For example:

      penstock trigger try agents/jen/inbox envelope.json
    """
    answer = _ask(common, "try", to=to, env=_read(file))
    rows = [[row["id"], row["hook"], "yes" if row["fits"] else "no", _outcome(row)] for row in answer["triggers"]]
    columns = ("trigger", "hook", "fits", "because, or what it sends")
    print_rows(answer, columns, rows, as_json=common.as_json)


def _outcome(row: dict[str, Any]) -> str:
    if "because" in row:
        return "; ".join(row["because"])
    return ", ".join(one.get("failure") or f"to {one['to']}" for one in row["sends"])
