"""Prints Control v1 lines for people: one short line of ASCII each, which mkolbol's ConsoleSink shows as text.

The sink shows a chunk of more than 100 bytes as hexadecimal numbers, so a line is cut, and lines are written one at a time.
"""

import json
import sys
import time

LINE_MAX = 98
PAUSE_S = 0.05
"""Between two lines: the host could join them into one chunk."""


def readable(frame: dict) -> str:
    """The gist of one frame."""
    if frame["type"] == "deliver":
        envelope = frame["env"]
        return f"{envelope['id']} to {frame['stream']}: {envelope['type']} {json.dumps(envelope['payload'])}"
    if frame["type"] == "error":
        return f"{frame['reqId']} failed: {frame['code']}, {frame['detail']}"
    return f"{frame.get('reqId', frame['type'])}: {json.dumps(frame.get('result', {}))}"


for line in sys.stdin:
    text = readable(json.loads(line))
    print(text.encode("ascii", "replace").decode()[:LINE_MAX], flush=True)
    time.sleep(PAUSE_S)
