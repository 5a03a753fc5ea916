"""A node's ways to the servers: the stream of a shard and the store of its live files, slow, and now and then without an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from penstock.core.cluster.writer import Found, Publish, Published, Seek, Unknown
from penstock.journal.replicated.shard_log import StoredLive
from tests.simulation.cluster.servers import SimStream

if TYPE_CHECKING:
    from tests.simulation.cluster.node import SimNode

T = TypeVar("T")
TIMEOUT_US = 1_000_000
RELEASE_LOSS = 0.3
"""How often the answer is lost to what hands a shard over: the next owner begins, and the last one does not know."""
PUT_CHANCE = 0.8
"""How often the store of live files accepts one."""


class SimLog:
    """`penstock.journal.replicated.shard_log.ShardLog`."""

    def __init__(self, node: SimNode, stream: SimStream) -> None:
        self._node = node
        self._stream = stream
        self.stream = stream.name

    def _ask(
        self, ask: Callable[[int, Callable[[T], None]], None], done: Callable[[T], None], unknown: Callable[[], None]
    ) -> None:
        """One answer comes, or none in time; the request may arrive all the same."""
        node, dice, clock, home = self._node, self._node.dice, self._node.cluster.clock, self._node.home
        ends: list[Callable[[], None]] = []

        def end() -> None:
            ends[0]()

        guarded = node.guard(end)

        def finish(call: Callable[[], None]) -> None:
            if not ends:
                ends.append(call)
                guarded()

        def answered(result: T) -> None:
            if node.hears(home) and dice.random() >= node.cluster.loss:
                clock.after(node.delay(), lambda: finish(lambda: done(result)))

        def arrive() -> None:
            if node.cluster.servers.is_up[home]:
                ask(home, answered)

        if node.speaks(home) and dice.random() >= node.cluster.loss:
            clock.after(node.delay(), arrive)
        clock.after(TIMEOUT_US, lambda: finish(unknown))

    def publish(self, step: Publish, done: Callable[[Published], None]) -> None:
        is_answered = step.message.kind != "released" or self._node.dice.random() >= RELEASE_LOSS

        def ask(home: int, answer: Callable[[Published], None]) -> None:
            self._stream.publish(home, step, answer if is_answered else lambda result: None)

        def send() -> None:
            self._ask(ask, done, lambda: done(Unknown()))

        self._node.write(send)
        if step.message.kind == "epoch":
            self._node.begins()

    def tail(self, step: Seek, done: Callable[[Found | Unknown], None]) -> None:
        self._ask(lambda home, answer: self._stream.read(home, step, answer), done, lambda: done(Unknown()))

    def forget(self, through: int, done: Callable[[bool], None]) -> None:
        self._ask(lambda home, answer: self._stream.forget(home, through, answer), done, lambda: done(False))

    def measure(self, done: Callable[[int | None], None]) -> None:
        self._ask(lambda home, answer: answer(self._stream.used), done, lambda: done(None))


class LiveFileStore(dict[str, tuple[StoredLive, bytes]]):
    """The live files of one shard and generation."""


class SimStore:
    """Live files of one shard: stored, or not, or stored without an answer. `LiveStore`."""

    def __init__(self, node: SimNode, files: LiveFileStore) -> None:
        self._node = node
        self._files = files

    def put(self, file: StoredLive, data: bytes | memoryview, done: Callable[[bool], None]) -> None:
        node, home = self._node, self._node.home
        is_stored = node.speaks(home) and node.dice.random() < PUT_CHANCE
        answer = node.guard(lambda: done(is_stored and node.hears(home)))

        def store() -> None:
            if is_stored:
                assert file.name not in self._files, "a name is never used twice"
                self._files[file.name] = (file, bytes(data))
            answer()

        node.cluster.clock.after(node.delay() * 10, store)

    def newest(self, done: Callable[[StoredLive | Unknown | None], None]) -> None:
        files = [file for file, _ in self._files.values()]
        found = max(files, key=lambda file: (file.end.offset, file.end.seq), default=None)
        self._later(lambda: done(found if self._is_near() else Unknown()))

    def get(self, file: StoredLive, done: Callable[[bytes | Unknown], None]) -> None:
        found = self._files.get(file.name)
        self._later(lambda: done(Unknown() if found is None or not self._is_near() else found[1]))

    def remove_before(self, offset: int) -> None:
        for name in [name for name, (file, _) in self._files.items() if file.end.offset < offset]:
            del self._files[name]

    def _is_near(self) -> bool:
        return self._node.speaks(self._node.home) and self._node.hears(self._node.home)

    def _later(self, call: Callable[[], None]) -> None:
        self._node.cluster.clock.after(self._node.delay(), self._node.guard(call))
