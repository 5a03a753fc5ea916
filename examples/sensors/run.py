"""Run everything: a server whose pipeline contains the collector, three sensors, and a dashboard; then print what targeting saved.

    python examples/sensors/run.py [--windows N] [--timeout SECONDS]

It needs Spark: `pip install "penstock[spark]"`. It prints its progress, ends by itself, and stops everything that it has started.
"""

import argparse
import asyncio
import importlib.util
import json
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import dashboard
import sensors

import penstock

HERE = Path(__file__).absolute().parent
PENSTOCK = (sys.executable, "-m", "penstock")
PROGRESS_S = 3.0
REST_S = 1.5
"""The means of several windows arrive together, in any order: wait for the rest of them."""
STOP_S = 30.0
FAILURES_MAX = 2
"""The server restarts Spark after a failure; after this many the example gives up."""
LOG_LINES = 15
SLOW = "hint: if Spark was only starting, give it more time, for example `--timeout 600`"

Windows = dict[str, dict[str, str]]
"""The means by the start of their window, then by sensor."""


class ExampleError(Exception):
    """Why the example ends early."""


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[str]:
    """A server in this folder, and its address."""
    words = ("up", "--config", "config.yaml", "--data", str(folder / "penstock-data"), "--no-relay", "--json")
    log = folder / "server.log"
    with log.open("w") as errors:
        process = await asyncio.create_subprocess_exec(
            *(*PENSTOCK, *words, "--http", "localhost:0", "--control", "off"),
            cwd=HERE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            raise ExampleError(f"the server did not start{tail(log)}")
        yield json.loads(line)["http"]
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


async def ask(folder: Path, *words: str) -> dict:
    """What a `penstock` command says about the server in this folder."""
    process = await asyncio.create_subprocess_exec(
        *(*PENSTOCK, *words, "--json"), cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:  # cancelled
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise ExampleError(f"`penstock {' '.join(words)}` failed")
    return json.loads(output)


async def follow(folder: Path, found: Windows) -> None:
    """Print the progress; raises when the collector fails, or the pipeline fails again after its restart."""
    began_s = time.monotonic()
    failure = ""
    while True:
        status = await ask(folder, "pipeline", "status")
        state = status["state"]
        collector = status.get("own", {}).get("own-collector", "starting")
        if collector not in ("starting", "running"):
            raise ExampleError(f"the collector does not run: {collector}{log_of_pipeline(folder)}")
        means = sum(map(len, found.values()))
        note = f"Spark is {state}; {means} means received"
        if state in ("failed", "halted"):
            note = f"Spark has {state}: {status.get('message')}\nhint: {status.get('hint')}"
            if state == "halted" or status.get("failures", 1) >= FAILURES_MAX:
                raise ExampleError(f"{note}{log_of_pipeline(folder)}")
            failure, note = note, "Spark starts again" if note == failure else note
        print(f"{time.monotonic() - began_s:4.0f} s  {note}", flush=True)
        await asyncio.sleep(PROGRESS_S)


async def receive(url: str, found: Windows, windows: int, is_enough: asyncio.Event) -> None:
    """Be the dashboard; it has enough when some windows have the mean of every sensor."""
    async with penstock.Space(url, space="demo", participant="dashboard", token=dashboard.TOKEN) as space:
        async for mean in dashboard.averages(space):
            found.setdefault(mean["from"], {})[mean["sensor"]] = f"{mean['celsius']:.2f} °C of {mean['readings']}"
            if len(complete(found)) >= windows:
                is_enough.set()


def complete(found: Windows) -> list[tuple[str, dict[str, str]]]:
    """Windows with all sensors, in order of time."""
    return [(start, means) for start, means in sorted(found.items()) if len(means) == len(sensors.SENSORS)]


async def run(windows: int, timeout_s: float, folder: Path) -> None:
    """Run everything until the dashboard has its means, something fails, or the time is over."""
    found: Windows = {}
    is_enough = asyncio.Event()
    async with server(folder) as url:
        print(f"the server is at {url}; Spark takes 10 to 60 seconds to start", flush=True)
        parts = [is_enough.wait(), receive(url, found, windows, is_enough), follow(folder, found)]
        parts += [sensors.measure(url, name, sensors.weather(name)) for name in sensors.SENSORS]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            ended, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()  # raises why a part ended early
            if not ended:
                raise ExampleError(f"no means after {timeout_s:.0f} seconds\n{SLOW}{log_of_pipeline(folder)}")
            await asyncio.sleep(REST_S)
            show(complete(found)[-windows:], (await ask(folder, "space", "ls", "--space", "demo"))["spaces"][0])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def show(windows: list[tuple[str, dict[str, str]]], space: dict) -> None:
    """Print the means in order of time, who received which stream, and what targets saved."""
    print("\nmeans of two seconds, as the dashboard received them:")
    print("from      " + "".join(f"{name:<17}" for name in sensors.SENSORS).rstrip())
    for start, means in windows:
        print(f"{start[11:19]}  " + "".join(f"{means[name]:<17}" for name in sensors.SENSORS).rstrip())
    print("\nstream from  to         frames  deliveries  without a target")
    for stream in sorted(space["streams"], key=lambda stream: stream["owner"]):
        to = ", ".join(stream.get("target") or ["everybody"])
        counts = f"{stream['frames']:>6}  {stream['deliveries']:>10}  {stream['broadcast']:>16}"
        print(f"{stream['owner']:<11}  {to:<9}  {counts}")
    targeted = [stream for stream in space["streams"] if stream.get("target")]
    sent, broadcast = (sum(stream[name] for stream in targeted) for name in ("deliveries", "broadcast"))
    print(f"\ntargets saved {1 - sent / broadcast:.0%} of the deliveries of readings: {sent} instead of {broadcast}")


def log_of_pipeline(folder: Path) -> str:
    return tail(folder / "penstock-data" / "run" / "pipeline.log")


def tail(log: Path) -> str:
    """The end of a log, which is deleted with the folder."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(["", f"the last lines of {log.name}:", *lines[-LOG_LINES:]]) if lines else ""


async def main() -> None:
    options = argparse.ArgumentParser(description="Run the sensor example.")
    options.add_argument("--windows", type=int, default=3, help="windows of two seconds to show")
    options.add_argument("--timeout", type=float, default=180.0, help="seconds after which the example gives up")
    wanted = options.parse_args()
    if importlib.util.find_spec("pyspark") is None:
        raise ExampleError(
            'PySpark is not installed\nhint: run `pip install "penstock[spark]"`, or `make setup` in a clone'
        )
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with tempfile.TemporaryDirectory() as folder:
        await run(wanted.windows, wanted.timeout, Path(folder))


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except (ExampleError, penstock.PenstockError) as error:
        sys.exit(f"error: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("error: interrupted")
