"""What the examples of this folder share: a place in the space, a deadline, and a clear message when something fails.

Each example takes the same words: `[URL] [NAME=TOKEN …]`. Without them it uses the server on this machine and the tokens of `space.yaml`.
"""

import asyncio
import sys
from collections.abc import Coroutine

import penstock

URL = next((word for word in sys.argv[1:] if "=" not in word), None)
TOKENS = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
DEADLINE_S = 60.0


def participant(name: str) -> penstock.Space:
    """A participant of the space; joins with `async with`."""
    return penstock.Space(URL, space="demo", participant=name, token=TOKENS.get(name, f"{name}-token"))


def run(work: Coroutine[None, None, None]) -> None:
    """Run a program to its end, for at most `DEADLINE_S` seconds."""
    try:
        asyncio.run(asyncio.wait_for(work, DEADLINE_S))
    except Exception as error:
        sys.exit(f"error: {reason(error)}")


def reason(error: Exception) -> str:
    """Why a program failed; of several failures the first."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return (
            f"not done after {DEADLINE_S:g} seconds\nhint: `penstock space ls --space demo` shows who is in the space"
        )
    return str(error) if isinstance(error, penstock.PenstockError) else repr(error)
