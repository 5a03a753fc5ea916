"""Pipes and the kernel: order, back-pressure, splitting, merging, ends, failures and lookup."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import PenstockError
from penstock.kernel import Capabilities, Kernel, Pipe

PATIENCE_S = 10.0


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work

    asyncio.run(bounded())


async def turns(count: int = 20) -> None:
    """Let everything happen that can happen now."""
    for _ in range(count):
        await asyncio.sleep(0)


async def everything(pipe: Pipe) -> list[Any]:
    return [chunk async for chunk in pipe]


async def fill(pipe: Pipe, chunks: list[Any]) -> None:
    for chunk in chunks:
        await pipe.write(chunk)
    pipe.end()


class TestJoining:
    def test_connect_passes_chunks_and_the_end_on(self) -> None:
        async def go() -> None:
            async with Kernel() as kernel:
                a, b, c = (kernel.create_pipe() for _ in range(3))
                assert kernel.connect(a, b) is b
                kernel.connect(b, c)
                await fill(a, [b"1", b"2"])
                assert await everything(c) == [b"1", b"2"]

        run(go())

    @pytest.mark.promise(
        "Stream Kernel", "`register`, `lookup`, `connect`, `split` and `merge` behave as in the kernel"
    )
    def test_the_slowest_branch_throttles_all(self) -> None:
        async def go() -> None:
            async with Kernel() as kernel:
                source, quick, slow = (kernel.create_pipe(2, object_mode=True) for _ in range(3))
                kernel.split(source, [quick, slow])
                writing = asyncio.ensure_future(fill(source, list(range(1, 51))))
                got: list[int] = []

                async def take() -> None:
                    while (chunk := await quick.read()) is not None:
                        got.append(chunk)

                taking = asyncio.ensure_future(take())
                await turns(100)
                assert got == [1, 2, 3], "what the slow branch holds, and the chunk it does not take"
                await slow.read()
                await turns(100)
                assert got == [1, 2, 3, 4]
                assert await everything(slow) == list(range(2, 51))
                await taking
                assert got == list(range(1, 51))
                await writing

        run(go())

    def test_connecting_a_source_twice_is_splitting_it(self) -> None:
        async def go() -> None:
            async with Kernel() as kernel:
                source, one, other = (kernel.create_pipe() for _ in range(3))
                kernel.connect(source, one)
                kernel.connect(source, other)
                await fill(source, [b"x"])
                assert (await everything(one), await everything(other)) == ([b"x"], [b"x"])

        run(go())

    def test_a_branch_that_is_closed_drops_out_and_the_others_go_on(self) -> None:
        async def go() -> None:
            async with Kernel() as kernel:
                source, gone, stays = (kernel.create_pipe() for _ in range(3))
                kernel.split(source, [gone, stays])
                gone.destroy()
                await fill(source, [b"x", b"y"])
                assert await everything(stays) == [b"x", b"y"]

        run(go())

    @pytest.mark.promise(
        "Stream Kernel", "`register`, `lookup`, `connect`, `split` and `merge` behave as in the kernel"
    )
    def test_the_first_source_to_end_ends_what_is_merged(self) -> None:
        async def go() -> None:
            async with Kernel() as kernel:
                one, other, merged = (kernel.create_pipe() for _ in range(3))
                kernel.merge([one, other], merged)
                await one.write(b"1")
                await other.write(b"2")
                assert sorted([await merged.read(), await merged.read()]) == [b"1", b"2"]
                one.end()
                assert await merged.read() is None
                await other.write(b"lost")
                await turns()
                assert await merged.read() is None

        run(go())

    def test_a_source_that_fails_fails_its_destinations(self) -> None:
        async def go() -> None:
            async with Kernel() as kernel:
                source, sink = kernel.create_pipe(), kernel.create_pipe()
                kernel.connect(source, sink)
                source.destroy(ValueError("broken"))
                with pytest.raises(ValueError, match="broken"):
                    await sink.read()

        run(go())

    def test_a_closed_kernel_pumps_no_more(self) -> None:
        async def go() -> None:
            kernel = Kernel()
            source, sink = kernel.create_pipe(), kernel.create_pipe()
            kernel.connect(source, sink)
            await turns()
            await kernel.close()
            await source.write(b"x")
            await turns()
            assert (source.readable.size, sink.readable.size) == (1, 0)

        run(go())

    @settings(max_examples=40)
    @given(st.lists(st.lists(st.integers(), max_size=15), min_size=1, max_size=4), st.integers(1, 3))
    def test_merged_sources_lose_and_reorder_nothing(self, sources: list[list[int]], mark: int) -> None:
        async def go() -> None:
            async with Kernel() as kernel:
                pipes = [kernel.create_pipe(mark, object_mode=True) for _ in sources]
                merged = kernel.create_pipe(mark, object_mode=True)
                kernel.merge(pipes, merged)
                writing = [
                    asyncio.ensure_future(pipe.write((number, value)))
                    for number, values in enumerate(sources)
                    for pipe in [pipes[number]]
                    for value in values
                ]
                got = [await merged.read() for _ in writing]
                for number, values in enumerate(sources):
                    assert [value for source, value in got if source == number] == values

        run(go())


class TestFinding:
    def test_what_is_registered_last_under_a_name_is_found(self) -> None:
        kernel = Kernel()
        one, other = kernel.create_pipe(), kernel.create_pipe()
        kernel.register("a", {"type": "source", "produces": ["x"]}, one)
        kernel.register("a", {"type": "output", "accepts": ["y"], "produces": []}, other)
        assert kernel.lookup() == [other]
        assert kernel.lookup(produces="x") == []
        assert kernel.lookup(accepts="y") == [other]

    @pytest.mark.promise(
        "Stream Kernel", "`register`, `lookup`, `connect`, `split` and `merge` behave as in the kernel"
    )
    @pytest.mark.parametrize(
        ("asked", "found"),
        [
            ({}, ["any", "text", "both"]),
            ({"accepts": "text"}, ["any", "text"]),
            ({"accepts": "image"}, ["any", "both"]),
            ({"produces": "text"}, ["any", "both"]),
            ({"features": ["fast"]}, ["text", "both"]),
            ({"features": ["fast", "safe"]}, ["both"]),
            ({"accepts": "text", "features": ["safe"]}, []),
        ],
    )
    def test_the_rule_of_matching(self, asked: dict[str, Any], found: list[str]) -> None:
        """No list fits every question about it, but no features are no features."""
        kernel = Kernel()
        pipes = {name: kernel.create_pipe() for name in ("any", "text", "both")}
        kernel.register("any", Capabilities("transform"), pipes["any"])
        text = {"type": "output", "accepts": ["text"], "produces": [], "features": ["fast"]}
        kernel.register("text", text, pipes["text"])
        both = {"type": "input", "accepts": ["image"], "produces": ["text"], "features": ["safe", "fast"]}
        kernel.register("both", both, pipes["both"])
        assert kernel.lookup(**asked) == [pipes[name] for name in found]

    @pytest.mark.parametrize("wrong", [{}, {"type": "magic"}, {"type": "input", "accept": []}])
    def test_capabilities_that_do_not_fit_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(PenstockError):
            Kernel().register("a", wrong, Kernel().create_pipe())
