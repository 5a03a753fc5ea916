"""Pipes: order, back-pressure, ends, and rejected chunks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.core.errors import PenstockError
from penstock.kernel import Kernel, PipeClosedError, duplex
from tests.kernel.test_kernel import everything, fill, run, turns


class TestPipe:
    def test_what_is_written_comes_out_in_order_and_then_the_end(self) -> None:
        async def go() -> None:
            pipe = Kernel().create_pipe()
            writing = asyncio.ensure_future(fill(pipe, [b"a", "ü", b"c"]))
            assert await everything(pipe) == [b"a", "ü".encode(), b"c"]
            assert await pipe.read() is None, "the end stays the end"
            await writing

        run(go())

    @pytest.mark.promise(
        "Stream Kernel", "`register`, `lookup`, `connect`, `split` and `merge` behave as in the kernel"
    )
    def test_a_writer_waits_at_the_mark_until_data_is_read(self) -> None:
        async def go() -> None:
            pipe = Kernel().create_pipe(high_water_mark=10)
            written: list[int] = []

            async def write() -> None:
                for number in range(100):
                    await pipe.write(b"xxxx")
                    written.append(number)

            writing = asyncio.ensure_future(write())
            await turns()
            assert len(written) == 3, "4 + 4 is below the mark of 10, and one chunk may pass it"
            assert pipe.readable.size == 12
            await pipe.read()
            await turns()
            assert len(written) == 4
            writing.cancel()

        run(go())

    def test_objects_count_one_each(self) -> None:
        async def go() -> None:
            pipe = Kernel().create_pipe(object_mode=True)
            for number in range(16):
                await pipe.write({"n": number})
            late = asyncio.ensure_future(pipe.write({"n": 16}))
            await turns()
            assert not late.done()
            assert (await pipe.read())["n"] == 0
            await late

        run(go())

    @pytest.mark.parametrize(("object_mode", "chunk"), [(False, {"n": 1}), (False, 7), (True, None)])
    def test_what_is_no_chunk_is_refused(self, object_mode: bool, chunk: Any) -> None:
        """A byte pipe that is fed objects stops the other implementation's host."""

        async def go() -> None:
            pipe = Kernel().create_pipe(object_mode=object_mode)
            with pytest.raises(PenstockError) as caught:
                await pipe.write(chunk)
            assert caught.value.code == "InvalidRequest"

        run(go())

    def test_after_the_end_writes_fail_and_a_waiting_writer_is_notified(self) -> None:
        async def go() -> None:
            pipe = Kernel().create_pipe(high_water_mark=1)
            await pipe.write(b"a")
            waiting = asyncio.ensure_future(pipe.write(b"b"))
            await turns()
            pipe.end()
            with pytest.raises(PipeClosedError):
                await waiting
            with pytest.raises(PipeClosedError):
                await pipe.write(b"c")
            assert await everything(pipe) == [b"a"], "what was written before is read"

        run(go())

    def test_the_ends_of_a_duplex_are_each_others(self) -> None:
        async def go() -> None:
            one, other = duplex()
            await one.write(b"there")
            await other.write(b"back")
            assert (await other.read(), await one.read()) == (b"there", b"back")
            one.end()
            assert await other.read() is None
            await other.write(b"still")
            assert await one.read() == b"still", "one direction's end is not the other's"
            other.destroy(ValueError("broken"))
            with pytest.raises(ValueError, match="broken"):
                await one.read()

        run(go())

    def test_a_mark_is_one_or_more(self) -> None:
        with pytest.raises(PenstockError):
            Kernel().create_pipe(high_water_mark=0)
