"""Errors between Spark and a journal. Each message says what to do.

Errors that a restart does not fix have a `code`, which the pipeline reports. `DATA_LOSS` in a message is for supervisors of other queries:
Spark passes on only the text of what a source raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb

from penstock.core.errors import PenstockError
from penstock.journal.reader import JournalError, RangeGoneError
from penstock.journal.segments import DamageError


class HintedError(Exception):
    """An error with a hint; its text is both, because Spark passes on only the text."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}; {hint}")
        self.message = message
        self.hint = hint


class TableFailedError(Exception):
    """A user table whose rows cannot be computed. The pipeline tries again, because the cause may be the cluster."""

    def __init__(self, name: str, file: Path, line: int | None, reason: str) -> None:
        super().__init__(f"the table `{name}` of `{file}`{'' if line is None else f', line {line}'}: {reason}")
        self.hint = "correct the function; the pipeline restarts and reads the file again" if line else None


def line_in(file: Path, error: BaseException) -> int | None:
    """The last line of a user's file that an error comes from: by its traceback, else by its text, as Spark quotes it."""
    place = file.absolute()
    if isinstance(error, SyntaxError) and error.filename == str(place):
        return error.lineno
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(place)]
    quoted = re.findall(rf'{re.escape(str(place))}(?:", line |:)(\d+)', str(error))
    return next(reversed([*map(int, quoted), *(line for line in lines if line)]), None)


SPARK_OPTIONS = frozenset({"path", "paths", "checkpointlocation", "queryname", "owner", "location", "provider"})
"""Options that Spark passes to a format besides those that were given."""


def unknown_option(
    given: Iterable[str], known: Iterable[str], passed: Iterable[str] = SPARK_OPTIONS
) -> tuple[str, str] | None:
    """The first option that a format does not have, and a hint with the nearest; None if it has all of them."""
    spelled = {name.lower(): name for name in known}
    allowed = {*spelled, *passed}
    for name in given:
        if name.lower() not in allowed:
            near = get_close_matches(name.lower(), spelled, 1)
            hint = f"did you mean `{spelled[near[0]]}`?" if near else f"options: {', '.join(spelled.values())}"
            return f"there is no option `{name}`", hint
    return None


class SourceError(HintedError):
    """A source that cannot continue; the message says what to do."""


class DataLossError(SourceError):
    """Rows that a query needs are gone."""

    code = "DataLoss"

    def __init__(self, message: str) -> None:
        super().__init__(f"DATA_LOSS: {message}")


class GoneError(DataLossError):
    """Retention removed the rows."""

    def __init__(self, where: str, first: int | None, oldest: int | None, what: str) -> None:
        super().__init__(
            f"{what}, in the journal at {where}. To continue from the oldest row that is kept, set"
            " `failOnDataLoss` to false; to make retention wait for this query next time, give it a `reader`."
        )
        self.first = first
        self.oldest = oldest


class JournalChangedError(DataLossError):
    """The checkpoint belongs to another journal."""

    code = "JournalChanged"


class JournalRewoundError(DataLossError):
    """The journal lost rows that the query has read."""

    code = "JournalRewound"


@contextmanager
def source_errors(where: str) -> Iterator[None]:
    """Raise failures of a journal as `SourceError`. `where` is the directory or the URL, never a token."""
    try:
        yield
    except RangeGoneError as error:
        raise GoneError(where, error.first, error.oldest, str(error)) from None
    except JournalError as error:
        raise SourceError(f"{error} ({where})") from None
    except DamageError as error:
        raise SourceError(
            f"{error}, in the journal at {where}. `penstock log check` lists all damage",
            "restore the file from a backup.",
        ) from None
    except PermissionError as error:
        raise SourceError(
            f"no access to `{error.filename}`: a journal belongs to the user who runs its server. Run Spark as"
            " that user, or read through the server with the options `url` and `token`."
        ) from None
    except FileNotFoundError as error:
        raise SourceError(
            f"the journal at {where} no longer exists: `{error.filename}` is missing. Restore the directory, or start"
            " a server on it",
            "a query on a new journal needs a new checkpoint.",
        ) from None
    except PenstockError as error:
        raise _from_server(where, error) from None


def _from_server(where: str, error: PenstockError) -> SourceError:
    refusal = error.refusal
    match error.code:
        case "RangeGone":
            return GoneError(where, None, None, refusal.message)
        case "Unauthorized" | "Forbidden":
            return SourceError(
                f"the server at {where} rejects the token: {refusal.message}. The journal needs the operator's token, which"
                " the server writes to `run/operator.token` of its data directory, or one with the scope `admin:*`;"
                " pass it with the option `token`, `tokenFile`, or `token` = `env:NAME`."
            )
        case "Unreachable":
            return SourceError(
                f"{refusal.message}. Is the server running, and is this the URL of its HTTP door? To wait longer for"
                " a server that restarts, raise the option `retryTimeout`."
            )
        case "UnknownRoute":
            return SourceError(
                f"the server at {where} has no journal, or is not a Penstock server: {refusal.message}."
                " Start it with `--data DIR`, or correct the option `url`."
            )
        case _:
            hint = refusal.hint or refusal.kind.hint
            hint = f"{hint[:1].upper()}{hint[1:]}."
            return SourceError(f"the server at {where} rejects the request: {refusal.message}. {hint}")
