"""One query in a process: truncated at its rows and bytes, rejected with a reason, and bounded before it runs."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock.server.admin import sql_process
from penstock.server.admin.sql_process import SqlTask


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_deltalake(folder / "lake" / "notes", pa.table({"n": range(500), "text": ["x" * 10] * 500}))
    return folder


def run(data, query, rows_max=1_000):
    return msgspec.json.decode(sql_process.run(SqlTask(str(data), query, rows_max, 1_000)))


@pytest.mark.promise(
    "Tail and SQL for administrators",
    "a query is bounded in time, memory, rows and bytes, and ends when its client disconnects",
)
def test_an_answer_is_cut_at_its_bytes(data):
    answer = run(data, "select repeat(text, 1000) as long from notes")
    size = sum(len(row[0]) for row in answer["rows"])
    assert answer["truncated"] and 0.9 * sql_process.BYTES_MAX < size <= sql_process.BYTES_MAX
    assert run(data, "select repeat(text, 200000) as long from notes where n = 0")["rows"] == []
    whole = run(data, "select n from notes", 500)
    assert len(whole["rows"]) == 500 and not whole["truncated"]


def test_rows_are_cut_and_say_so(data):
    answer = run(data, "select n from notes order by n", 3)
    assert answer["rows"] == [[0], [1], [2]] and answer["truncated"]
    assert (answer["columns"], answer["types"]) == (["n"], ["int64"]) and answer["ms"] >= 0


@pytest.mark.parametrize("query", ["select * from nope", "drop table notes", "nonsense", "copy notes to 'x.csv'"])
def test_a_wrong_query_is_a_refusal(data, query):
    assert run(data, query)["refused"]["code"] == "InvalidRequest"


def test_an_unknown_table_names_those_there_are(data):
    assert run(data, "select * from nope")["refused"]["hint"] == "there are: notes"


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        ("raise MemoryError", sql_process.EXIT_OUT_OF_MEMORY),
        ("raise PenstockError(Refusal('InvalidRequest', 'what')) from MemoryError()", sql_process.EXIT_OUT_OF_MEMORY),
        ("try: raise MemoryError\n  except MemoryError: raise ValueError from None", sql_process.EXIT_OUT_OF_MEMORY),
        ("raise PenstockError(Refusal('InvalidRequest', 'what')) from ValueError()", 0),
        ("raise ValueError", 1),
    ],
)
def test_out_of_memory_is_recognised_however_it_is_wrapped(raised, code):
    script = (
        "from penstock.core.errors import PenstockError, Refusal\n"
        "from penstock.server.admin import sql_process\n"
        f"def ask(lake, query):\n  {raised}\n"
        "sql_process.ask = ask\nsql_process.main()"
    )
    task = msgspec.json.encode(SqlTask("lake", "select 1", 1, 60_000))
    assert (
        subprocess.run([sys.executable, "-c", script], input=task, capture_output=True, check=False).returncode == code
    )


def test_a_bounded_process_has_no_memory_no_file_and_an_alarm(tmp_path):
    code = (
        "import resource, signal; from penstock.server.admin import sql_process as s; s.bound(60_000);"
        "print(resource.getrlimit(resource.RLIMIT_DATA)[0], resource.getrlimit(resource.RLIMIT_FSIZE)[0],"
        " 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == [str(sql_process.MEMORY_MAX), "0", "True"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 0 and signal.getitimer(signal.ITIMER_REAL)[0] == 0
