"""Each fault that the design of a shard's log rules out is planted once, and a checker must name it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from penstock.core.clock import Now
from penstock.core.cluster import assignment, ownership, writer
from penstock.core.cluster.messages import LogMessage
from penstock.core.cluster.ownership import ShardOwnership
from penstock.core.cluster.reader import LogFrame, ShardReader
from penstock.core.cluster.writer import Kept, Publish, Published, Seek, ShardWriter, Step, Unknown
from penstock.dialects.courier.sessions.answers import Answers
from penstock.journal.replicated.live_files import LiveFiles
from penstock.journal.replicated.replicated_journal import ReplicatedJournal
from penstock.server.cluster.channels import FromShard, Gate
from penstock.server.engine.machines import Machines
from tests.core.cluster.logs import Log
from tests.simulation.cluster import checks, node, storm
from tests.simulation.cluster.servers import SimStream
from tests.simulation.cluster.storm import Cluster
from tests.simulation.queue.checks import Broken

SEEDS = 40
"""A fault that needs more storms than this to show is not caught."""

PAUSES = ("pause", "pause at a write")
CRASHES = ("crash", "power fails within a write", "pause at a write")
LATENESS = 0.1
MOVES = ("move", "drain", "leave")

Plant = Callable[[pytest.MonkeyPatch], None]


class Mutant(NamedTuple):
    """A fault, what must be named, and the storms in which it shows soon."""

    plant: Plant
    invariants: tuple[str, ...]
    """One of these, whichever a storm comes to first."""
    has_queues: bool
    faults: tuple[str, ...]
    shards: int


MUTANTS: list[Mutant] = []


def breaks(
    *invariants: str, has_queues: bool = False, faults: tuple[str, ...] = (), shards: int = 2
) -> Callable[[Plant], Plant]:
    """The storms have these faults, or all."""

    def add(plant: Plant) -> Plant:
        MUTANTS.append(Mutant(plant, invariants, has_queues, faults, shards))
        return plant

    return add


@breaks(checks.HALT, checks.EPOCHS, checks.SPOOL)
def two_frames_are_in_flight(patch: pytest.MonkeyPatch) -> None:
    """The next commit is published before the outcome of the last one is known. Each is answered by its own outcome."""
    perform = ReplicatedJournal._perform
    patch.setattr(storm, "MESSAGE_BYTES", 1 << 20)

    def eager(journal: Any, step: Publish | Seek) -> None:
        commit = journal._commit
        if not isinstance(step, Publish) or commit is None or getattr(journal, "in_flight", False):
            perform(journal, step)
            return
        journal.in_flight = True
        journal._commit = None
        journal.ownership.published(journal._now().us, Kept(step.after + 1))
        journal.ownership.verdict = None

        def outcome(result: Published) -> None:
            journal.in_flight = False
            if isinstance(result, Kept):
                journal._keep(commit.first, commit.rows, commit.frame, commit.recorded_us, commit.answer)
            journal.pump()

        journal._log.publish(step, outcome)
        journal._is_asking = False
        journal.pump()

    patch.setattr(ReplicatedJournal, "_perform", eager)


@breaks(checks.CALM, checks.EPOCHS, checks.HALT, checks.LEASE)
def an_owner_begins_without_a_marker(patch: pytest.MonkeyPatch) -> None:
    take_over = ShardOwnership._take_over

    def quiet(shard: Any, now_us: int) -> Publish:
        end = shard.reader.end
        if not end.epoch or end.is_released:
            return take_over(shard, now_us)
        shard.state = "owning"
        shard.writer.epoch = end.epoch
        step: Publish = shard.writer.append(now_us, "idle")
        return step

    patch.setattr(ShardOwnership, "_take_over", quiet)


@breaks(checks.REFUSED)
def no_answer_counts_as_a_refusal(patch: pytest.MonkeyPatch) -> None:
    published = ShardWriter.published

    def give_up(self: ShardWriter, now_us: int, outcome: Published) -> Step:
        return self._resolve("deposed") if isinstance(outcome, Unknown) else published(self, now_us, outcome)

    patch.setattr(ShardWriter, "published", give_up)


@breaks(checks.DURABLE, checks.EPOCHS, checks.HALT)
def no_answer_counts_as_a_success(patch: pytest.MonkeyPatch) -> None:
    published = ShardWriter.published

    def assume(self: ShardWriter, now_us: int, outcome: Published) -> Step:
        return self._kept(now_us) if isinstance(outcome, Unknown) else published(self, now_us, outcome)

    patch.setattr(ShardWriter, "published", assume)


@breaks(checks.REFUSED, checks.TRUE, faults=("step down",))
def a_refused_copy_counts_as_a_deposition(patch: pytest.MonkeyPatch) -> None:
    """The copy in its place may be an earlier one of the same message, which came late."""
    delay = node.SimNode.delay

    def late(self: node.SimNode) -> int:
        return self.dice.randint(500_000, 3_000_000) if self.dice.random() < LATENESS else delay(self)

    patch.setattr(node.SimNode, "delay", late)
    published = ShardWriter.published

    def believe(self: ShardWriter, now_us: int, outcome: Published) -> Step:
        return self._resolve("deposed") if isinstance(outcome, writer.Passed) else published(self, now_us, outcome)

    patch.setattr(ShardWriter, "published", believe)


@breaks(checks.LEASE)
def a_lease_is_renewed_without_a_publish(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ownership, "is_held", lambda now_us, proven_us: proven_us is not None)


@breaks(checks.LEASE)
def a_candidate_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("penstock.core.cluster.lease.SILENCE_US", 0)


@breaks(checks.PURGE)
def the_log_is_purged_before_the_live_file_is_stored(patch: pytest.MonkeyPatch) -> None:
    offer = LiveFiles.offer

    def purge_first(files: LiveFiles, name: str, end: Any, data: Any) -> None:
        files._log.forget(end.seq, lambda is_done: None)
        offer(files, name, end, data)

    patch.setattr(LiveFiles, "offer", purge_first)


@breaks(checks.DURABLE)
def a_follower_is_read(patch: pytest.MonkeyPatch) -> None:
    def read(stream: SimStream, home: int, step: Seek, answer: Any) -> None:
        replica = stream.replicas[home]
        stream.answer_read(replica, len(replica.log), step, answer)

    patch.setattr(SimStream, "read", read)


@breaks(checks.SPOOL, faults=CRASHES)
def an_unfinished_commit_is_applied(patch: pytest.MonkeyPatch) -> None:
    accept = ShardReader.accept

    def apply(reader: ShardReader, seq: int, message: LogMessage | None) -> Any:
        parts = list(reader._parts)
        frame = accept(reader, seq, message)
        if parts and isinstance(frame, LogFrame) and frame.kind == "epoch":
            return LogFrame("rows", 1, parts[0].first, parts[0].rows, b"".join(part.payload for part in parts))
        return frame

    patch.setattr(ShardReader, "accept", apply)


@breaks(checks.LEASE, checks.DURABLE, faults=PAUSES)
def a_lease_begins_with_the_answer(patch: pytest.MonkeyPatch) -> None:
    """Not when the message was sent: an answer that is found after a pause says nothing about the time since."""
    kept = ShardWriter._kept

    def late(self: ShardWriter, now_us: int) -> Step:
        self._sent_us = now_us
        return kept(self, now_us)

    patch.setattr(ShardWriter, "_kept", late)


@breaks(checks.CALM, checks.OWNED, faults=("drain", "leave", "crash"))
def a_drained_node_takes_shards(patch: pytest.MonkeyPatch) -> None:
    may_take = assignment.may_take

    def take(*args: Any, drains: Any, **options: Any) -> bool:
        return may_take(*args, **options)

    patch.setattr(node, "may_take", take)


@breaks(checks.CALM, checks.OWNED)
def each_node_prefers_itself(patch: pytest.MonkeyPatch) -> None:
    """Assignment must not depend on who asks."""
    patch.setattr(node, "may_take", lambda *args, **options: True)
    patch.setattr(node, "shard_to_release", lambda *args, **options: None)


@breaks(checks.MOVES)
def moves_do_not_wait_until_the_nodes_are_settled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(assignment, "SETTLED_US", 0)


@breaks(checks.MOVES, faults=(*MOVES, "crash"), shards=4)
def shards_move_together(patch: pytest.MonkeyPatch) -> None:
    release = assignment.shard_to_release

    def eager(name: str, live: Any, owners: Any, shards: int, **options: Any) -> int | None:
        return release(name, live, {shard: owner for shard, owner in owners.items() if owner}, shards, **options)

    patch.setattr(node, "shard_to_release", eager)


@breaks(checks.DURABLE, has_queues=True, faults=PAUSES)
def a_gate_is_open_without_the_lease(patch: pytest.MonkeyPatch) -> None:
    """Then it may hand out what the next owner has settled."""

    def post(gate: Any, message: Any, size: int) -> None:
        if not gate._is_over:
            gate._link.post(FromShard(gate.no, message), size)

    patch.setattr(Gate, "post", post)


@breaks(checks.DURABLE, has_queues=True)
def an_answer_does_not_wait_for_its_commit(patch: pytest.MonkeyPatch) -> None:
    after = Answers.after

    def hurry(answers: Answers, gate: int, render: Any, *, fresh: bool = False) -> None:
        after(answers, 0, render, fresh=fresh)

    patch.setattr(Answers, "after", hurry)


@breaks(checks.ONCE, has_queues=True)
def a_new_owner_forgets_the_ids(patch: pytest.MonkeyPatch) -> None:
    recovered = Machines.recovered

    def forget(machines: Machines, now: Now) -> None:
        recovered(machines, now)
        for channel in machines.queue.channels.values():
            channel.settled.clear()
            channel.order.clear()

    patch.setattr(Machines, "recovered", forget)


@breaks(checks.LEASE, faults=MOVES)
def a_moved_shard_is_served_until_the_answer_comes(patch: pytest.MonkeyPatch) -> None:
    """The next owner waits for nothing once the end of the epoch is in the log."""
    patch.setattr(
        ShardOwnership, "_has_let_go", property(lambda shard: False, lambda shard, value: None), raising=False
    )


@pytest.mark.promise("Invariants", "every checker of a cluster's logs detects a planted fault")
@pytest.mark.parametrize("mutant", [pytest.param(mutant, id=mutant.plant.__name__) for mutant in MUTANTS])
def test_a_planted_fault_is_named(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    with pytest.raises(Broken) as caught:
        weather_storms(mutant)
    assert caught.value.invariant in mutant.invariants


def test_of_two_frames_in_flight_the_second_lands_behind_a_new_owner() -> None:
    """Why one message is in flight: its condition is about a sequence, and the marker of another owner takes the first one's."""
    cluster = Cluster(0)
    stream, model = cluster.streams[0], cluster.models[0]
    log = Log()
    kept: list[Published] = []

    def publish(message: LogMessage, after: int) -> Published:
        stream.publish(0, Publish(message, after), kept.append)
        return kept.pop()

    [marker] = log.make("epoch", b"a 00", epoch=1)
    log.add(marker)
    assert isinstance(publish(marker, 0), Kept)
    rivals = log.make("epoch", b"b 00", epoch=2)
    first = log.make("rows", b"", 0)
    log.add(first[0])
    second = log.make("rows", b"", 0)
    assert isinstance(publish(rivals[0], 1), Kept)
    assert isinstance(publish(first[0], 1), writer.Passed)
    with pytest.raises(Broken) as caught:
        publish(second[0], 2)
    assert caught.value.invariant == checks.EPOCHS
    assert model.stream == stream.name


@pytest.mark.parametrize("is_reused", [True, False], ids=["same name", "new name"])
def test_a_stream_that_is_written_anew_needs_a_new_name(is_reused: bool) -> None:
    """A writer of the lost stream knows sequence numbers only: under the same name, its next message would fit."""
    cluster = Cluster(0)
    lost, new = cluster.streams[0], SimStream(cluster.servers, "shard-0-g2", 1 << 40)
    new.on_commit = checks.LogModel(new.name).committed
    log, kept = Log(), list[Published]()
    first = log.make("epoch", b"a 00", epoch=1)[0]
    log.add(first)
    late = log.make("idle")[0]
    lost.publish(0, Publish(first, 0), kept.append)
    new.publish(0, Publish(Log().make("epoch", b"repair 01", epoch=2)[0], 0), kept.append)
    if is_reused:
        with pytest.raises(Broken) as caught:
            new.publish(0, Publish(late, 1), kept.append)
        assert caught.value.invariant == checks.EPOCHS
    else:
        lost.publish(0, Publish(late, 1), kept.append)
        assert len(new.truth) == 1


def weather_storms(mutant: Mutant) -> None:
    for seed in range(SEEDS):
        cluster = Cluster(seed, shards=mutant.shards, has_queues=mutant.has_queues)
        cluster.weather.restrict(mutant.faults or cluster.weather.names)
        cluster.run()
