"""JSON values that cost more to read than their bytes suggest, each of about a given size."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from penstock.server.engine.garbage import THRESHOLDS


def _many(item: bytes, size: int) -> bytes:
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"


def plain(size: int) -> bytes:
    """What an ordinary producer sends, and a number that the scanner in C leaves to Python, so that bounds mean the same with and without it."""
    return b"[1e1," + _many(b'{"name":"a sensible value","count":17,"flag":true,"list":[1,2,3]}', size)[1:]


def shapes(size: int) -> dict[str, bytes]:
    """The values by name."""
    return {
        "numbers": _many(b"1.5e300", size),
        "largest": _many(b"1.7976931348623157e308", size),
        "smallest": _many(b"5e-324", size),
        "midway": _many(b"9007199254740993" + b"0" * 700 + b"1e-701", size),
        "digits": _many(b"9" * 4000, size),
        "padded": _many(b"1e0000301", size),
        "keys": b"{" + b",".join(b'"%06x":0' % n for n in range(size // 11)) + b"}",
        "escaped keys": b"{" + b",".join(b'"\\u0041%06x":0' % n for n in range(size // 17)) + b"}",
        "repeated": b"{" + b",".join(b'"%06x":0' % n for n in range(size // 11)) + b',"000000":1.5e300}',
        "arrays": _many(b"[]", size),
        "objects": _many(b"{}", size),
        "depth": _many(b"[" * 60 + b"]" * 60, size),
        "deep objects": _many(b'{"a":' * 60 + b"1" + b"}" * 60, size),
        "too deep": _many(b"[" * 600 + b"]" * 600, size),
        "escapes": b'["' + b"\\n" * (size // 2) + b'"]',
        "backslashes": b'["' + b'\\\\\\"' * (size // 4) + b'"]',
        "surrogates": b'["' + b"\\ud83d\\ude00" * (size // 12) + b'"]',
        "half surrogates": _many(b'"\\ud800"', size),
        "brackets in a string": b'["' + b"[{" * (size // 2) + b'"]',
        "digits in a string": b'["' + b"9" * size + b'"]',
        "long string": b'["' + b"x" * size + b'"]',
        "short strings": _many(b'"a"', size),
        "spaces": b"[" + b" " * size + b"]",
    }


def cpu_s(work: Callable[[], object], rounds: int = 3) -> float:
    """CPU time of one call: the best of some."""
    usual = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)  # as in the server
    best = float("inf")
    try:
        for _ in range(rounds):
            began = time.thread_time()
            work()
            best = min(best, time.thread_time() - began)
    finally:
        gc.set_threshold(*usual)
    return best
