"""`penstock stdio`."""

from __future__ import annotations

from penstock.cli.options import PLAIN, Output


def stdio(*, output: Output = PLAIN) -> int:
    """Speak Control v1 on stdin and stdout, with a queue in memory, until the input ends.

    What it prints is JSON lines in any case, so --json changes nothing.

    For example:

      echo '{"type":"hello","version":"v1"}' | penstock stdio
    """
    from penstock.server.stdio import main

    return main()
