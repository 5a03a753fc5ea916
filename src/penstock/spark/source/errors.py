"""What can go wrong between Spark and a journal, in words that end with the cure.

Spark wraps what a Python source raises and keeps only its text, so the text has to be enough. `DATA_LOSS` in it is how a
supervisor knows that starting again would not help.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.errors import PenstockError
from penstock.journal.reader import JournalError, RangeGoneError
from penstock.journal.segments import DamageError


class SourceError(Exception):
    """A source that cannot go on; the message says what to do."""


class DataLossError(SourceError):
    """Rows that a query needs are gone."""

    def __init__(self, message: str) -> None:
        super().__init__(f"DATA_LOSS: {message}")


class GoneError(DataLossError):
    """Rows that are no longer kept, with where to go on."""

    def __init__(self, where: str, first: int | None, oldest: int | None, what: str) -> None:
        super().__init__(
            f"{what}, in the journal at {where}. To go on from the oldest row that is kept, set"
            " `failOnDataLoss` to false; to have history wait for this query next time, give it a `reader`."
        )
        self.first = first
        self.oldest = oldest


@contextmanager
def source_errors(where: str) -> Iterator[None]:
    """Failures of a journal as a source's. `where`: the directory or the URL, never a token."""
    try:
        yield
    except RangeGoneError as error:
        raise GoneError(where, error.first, error.oldest, str(error)) from None
    except JournalError as error:
        raise SourceError(f"{error} ({where})") from None
    except DamageError as error:
        raise SourceError(
            f"{error}, in the journal at {where}. `penstock log check` names every such place; restore the file from a backup."
        ) from None
    except PermissionError as error:
        raise SourceError(
            f"no access to `{error.filename}`: a journal belongs to the user who runs its server. Run Spark as"
            " that user, or read through the server with the options `url` and `token`."
        ) from None
    except FileNotFoundError as error:
        raise SourceError(
            f"the journal at {where} is not there any more: `{error.filename}` is missing. Restore the directory, or start"
            " a server on it; a query on a new journal needs a new checkpoint."
        ) from None
    except PenstockError as error:
        raise _of_server(where, error) from None


def _of_server(where: str, error: PenstockError) -> SourceError:
    refusal = error.refusal
    match error.code:
        case "RangeGone":
            return GoneError(where, None, None, refusal.message)
        case "Unauthorized" | "Forbidden":
            return SourceError(
                f"the server at {where} refuses the token: {refusal.message}. The journal needs the operator's token, which"
                " the server writes to `run/operator.token` of its data directory, or one with the scope `admin:*`;"
                " give it with the option `token`, `tokenFile`, or `token` = `env:NAME`."
            )
        case "Unreachable":
            return SourceError(
                f"{refusal.message}. Is the server running, and is this the URL of its HTTP door? To wait longer for"
                " one that restarts, raise the option `retryTimeout`."
            )
        case "UnknownRoute":
            return SourceError(
                f"the server at {where} keeps no journal, or is none of ours: {refusal.message}."
                " Start it with `--data DIR`, or correct the option `url`."
            )
        case _:
            return SourceError(f"the server at {where} refuses: {refusal.message}. {_hint(error)}")


def _hint(error: PenstockError) -> str:
    hint = error.refusal.hint or error.refusal.kind.hint
    return f"{hint[:1].upper()}{hint[1:]}."
