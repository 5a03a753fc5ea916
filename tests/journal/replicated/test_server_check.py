"""Which servers a node does not join."""

import msgspec
import pytest

from penstock.journal.replicated.server_check import ServerAbout, server_problem


def server(**changes: object) -> ServerAbout:
    about = {
        "server_name": "n1",
        "version": "2.15.1",
        "max_payload": 1024 * 1024,
        "jetstream": {"config": {"sync_always": True}},
    }
    return msgspec.convert(about | changes, ServerAbout)


def test_three_good_servers_pass() -> None:
    assert server_problem([server()] * 3) is None


@pytest.mark.promise("Cluster", "servers that acknowledge messages before they are on disk hold no cluster")
@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ({"jetstream": {"config": {}}}, "before they are on disk"),
        ({"jetstream": {}}, "before they are on disk"),
        ({"version": "2.14.4"}, "version 2.14.4"),
        ({"version": "2.9.25-beta"}, "version 2.9.25-beta"),
        ({"max_payload": 600_000}, "600000 bytes"),
    ],
)
def test_a_server_that_does_not_do_is_named(bad: dict[str, object], what: str) -> None:
    problem = server_problem([server(), server(server_name="n2", **bad), server()])
    assert problem is not None
    assert what in problem.message
    assert "`n2`" in problem.message
    assert problem.hint


def test_two_servers_are_too_few() -> None:
    problem = server_problem([server()] * 2)
    assert problem is not None
    assert "3 are needed" in problem.message
