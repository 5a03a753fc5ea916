"""The real server, for the tests of this folder."""

from tests.server_process import server, start_server, stream

__all__ = ["server", "start_server", "stream"]
