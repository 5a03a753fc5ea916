"""Run everything: a server with the collector in its pipeline, three sensors and a dashboard; at the end print who received what.

Run it with `python examples/sensors/run.py`; it ends once the dashboard has shown some means. `--means 50` shows more.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

HERE = Path(__file__).absolute().parent
PENSTOCK = [sys.executable, "-m", "penstock"]


@contextmanager
def started(folder: Path, name: str, *command: str) -> Iterator[Iterator[str]]:
    """Run a process and yield the lines it prints; its standard error goes to a file."""
    errors = folder / f"{name}.log"
    with errors.open("w") as file:
        process = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=file, text=True)
    assert process.stdout is not None

    def lines(output: IO[str] = process.stdout) -> Iterator[str]:
        yield from output
        print(errors.read_text(), file=sys.stderr)
        raise SystemExit(f"error: the {name} has ended; its output is above")

    try:
        yield lines()
    finally:
        process.terminate()
        process.communicate(timeout=60)


def show(means: int, folder: Path) -> None:
    """Run everything until the dashboard has shown this many means."""
    data, python = str(folder / "penstock-data"), sys.executable
    up = (*PENSTOCK, "up", "--config", "config.yaml", "--data", data, "--no-relay", "--json")
    with started(folder, "server", *up, "--http", "localhost:0", "--control", "off") as server:
        url = json.loads(next(server))["http"]
        print(f"the server is at {url}; Spark starts, which takes some seconds", flush=True)
        with (
            started(folder, "dashboard", python, "dashboard.py", url) as dashboard,
            started(folder, "sensors", python, "sensors.py", url),
        ):
            for line in islice(dashboard, means):
                print(line, end="", flush=True)
            print("\nwho received what:", flush=True)
            subprocess.run([*PENSTOCK, "space", "ls", "--space", "demo"], cwd=folder, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run the sensor example.")
    parser.add_argument("--means", type=int, default=6, help="lines of the dashboard to show")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        show(options.means, Path(folder))
