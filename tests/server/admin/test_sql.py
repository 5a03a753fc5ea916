"""SQL in separate processes: bounded in time, memory, rows, bytes and number, and ended when the client disconnects."""

from __future__ import annotations

import asyncio
import os

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock.core.errors import Refusal
from penstock.server.admin.lake import RUNNING_MAX, SqlEndpoint, SqlRequest
from penstock.server.config.sections import ConsoleSection
from tests.answerers import answerers

ENDLESS = (
    "select count(*) from notes, generate_series(1, 1000000) a, generate_series(1, 1000000) b where a.value % 7 = n"
)
HUGE = "select array_agg(repeat(text, 1000000)) from notes, generate_series(1, 100000)"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    table = pa.table({"n": range(500), "text": ["x" * 10] * 500})
    write_deltalake(folder / "lake" / "notes", table)
    return folder


def question(query, limit=200):
    return SqlRequest(query, limit)


def asked(asking, query, **more):
    return asyncio.run(asking.sql(question(query, **more)))


def test_an_answer_is_cut_at_the_rows_that_were_asked_for_and_at_those_that_are_allowed(data):
    asking = SqlEndpoint(data, lambda: ConsoleSection(sql_rows=30))
    reply = asked(asking, "select n, text from notes order by n", limit=7)
    answer = msgspec.json.decode(reply.body)
    assert answer["columns"] == ["n", "text"] and answer["types"] == ["int64", "string"]
    assert answer["rows"] == [[n, "x" * 10] for n in range(7)] and answer["truncated"]
    answer = msgspec.json.decode(asked(asking, "select n from notes", limit=10_000).body)
    assert len(answer["rows"]) == 30 and answer["truncated"] and answer["ms"] >= 0


def test_what_is_wrong_with_a_question_comes_back_as_a_refusal(data):
    refused = asked(SqlEndpoint(data, ConsoleSection), "drop table notes")
    assert isinstance(refused, Refusal) and "DropTable" in refused.message


@pytest.mark.promise(
    "Tail and SQL for administrators", "the server's processes import no modules from the working directory"
)
def test_files_of_the_working_directory_are_no_modules_of_ours(data, tmp_path, monkeypatch):
    for name in ("resource", "signal", "msgspec", "penstock"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    assert asked(SqlEndpoint(data, ConsoleSection), "select n from notes").status == 200


@pytest.mark.promise(
    "Tail and SQL for administrators",
    "a query is bounded in time, memory, rows and bytes, and ends when its client disconnects",
)
def test_a_question_that_takes_too_long_is_ended(data):
    asking = SqlEndpoint(data, lambda: ConsoleSection(sql_ms=900))
    refused = asked(asking, ENDLESS)
    assert isinstance(refused, Refusal) and refused.code == "Timeout" and "900 ms" in refused.message
    assert answerers(os.getpid()) == []


@pytest.mark.promise(
    "Tail and SQL for administrators",
    "a query is bounded in time, memory, rows and bytes, and ends when its client disconnects",
)
def test_a_question_that_needs_too_much_memory_ends_alone(data):
    refused = asked(SqlEndpoint(data, ConsoleSection), HUGE)
    assert isinstance(refused, Refusal) and refused.code == "InvalidRequest"
    assert "more than 768 MB" in refused.message and refused.hint


@pytest.mark.promise(
    "Tail and SQL for administrators",
    "a query is bounded in time, memory, rows and bytes, and ends when its client disconnects",
)
def test_few_queries_run_at_a_time_and_a_disconnect_frees_a_slot(data):
    asking = SqlEndpoint(data, lambda: ConsoleSection(sql_ms=600_000))

    async def go():
        loop = asyncio.get_running_loop()
        running = [loop.create_task(asking.sql(question(ENDLESS))) for _ in range(RUNNING_MAX)]
        async with asyncio.timeout(30):
            while len(answerers(os.getpid(), at_work=True)) < RUNNING_MAX:  # noqa: ASYNC110 - the system sends no event
                await asyncio.sleep(0)
            refused = await asking.sql(question("select 1 from notes"))
            assert isinstance(refused, Refusal) and refused.code == "RateLimited"
            for task in running:
                task.cancel()
            await asyncio.wait(running)
        assert answerers(os.getpid()) == []
        assert (await asking.sql(question("select n from notes"))).status == 200

    asyncio.run(go())


def test_a_server_without_a_directory_has_no_tables():
    refused = asked(SqlEndpoint(None, ConsoleSection), "select 1")
    assert isinstance(refused, Refusal) and refused.code == "UnknownRoute" and refused.hint
