"""The Spark master of a session: whether it is on this machine, and whether it answers.

Spark itself tries a master for a minute and then fails with a misleading message, so the master is checked before Java starts.
"""

from __future__ import annotations

import socket

ANSWER_S = 5.0
"""How long a master may take to accept a connection."""
_SCHEME = "spark://"
_PORT = 7077
"""The default port of a standalone master."""


class MasterError(Exception):
    """The master cannot be used; the hint says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def is_local(master: str) -> bool:
    """Whether everything runs on this machine: in one process, or with a master on a loopback address."""
    if not master.startswith(_SCHEME):
        return master.startswith("local")
    return all(host == "localhost" or host.startswith("127.") for host, _ in _addresses(master))


def check_master(master: str) -> None:
    """Refuse a standalone master that does not answer. Of several, one is enough. Other cluster managers are left to Spark."""
    if not master.startswith(_SCHEME):
        return
    reasons = []
    for address in _addresses(master):
        try:
            socket.create_connection(address, ANSWER_S).close()
        except OSError as error:
            reasons.append(error.strerror or "no answer" if not isinstance(error, TimeoutError) else "no answer")
        else:
            return
    raise MasterError(
        f"no Spark master answers at `{master}`: {', '.join(dict.fromkeys(reasons)).lower()}",
        "start the master, or correct its address; the master's own page shows it",
    )


def master_refused(master: str) -> MasterError:
    """The error for a context that stopped while it started: Spark tried the master for a minute."""
    return MasterError(
        f"`{master}` accepts connections but no applications",
        "is it the port of a master, and of the same version of Spark? The master's own page shows both",
    )


def _addresses(master: str) -> list[tuple[str, int]]:
    """The hosts and ports of `spark://host:port,host:port`."""
    found = []
    for part in master.removeprefix(_SCHEME).split(","):
        host, mark, port = part.rpartition(":")
        if mark and not port.isdigit():
            raise MasterError(f"`{master}` is not the address of a Spark master", f"write `{_SCHEME}host:{_PORT}`")
        found.append((host.strip("[]"), int(port)) if mark else (part, _PORT))
    return found
