"""The loops of the loads: a window is never exceeded, a schedule is kept, and a stall ends the wait."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from penstock.bench.harness import drive
from penstock.bench.harness.drive import LoadSocket, SocketGroup, count_until_end, send_paced, send_window
from penstock.bench.harness.load import Board, LoadJob


@pytest.fixture
def board(tmp_path, monkeypatch):
    monkeypatch.setattr(drive, "announce", lambda: None)
    Board.create(tmp_path / "board")
    return tmp_path / "board"


def test_a_window_is_never_exceeded_and_everything_is_counted(board):
    acked = most = 0

    def send(first, _now_ns):
        nonlocal most
        most = max(most, first + 10 - acked)
        return 10

    def read(_wait_s):
        nonlocal acked
        acked += 5

    job = LoadJob(board=str(board), window=40)
    report = send_window(job, send, read, lambda: acked, burst=10, count_max=1_000)
    assert report.count == 1_000 <= acked and most <= 40 and Board(board).total == 1_000


def test_messages_that_never_arrive_end_the_wait(board):
    job = LoadJob(board=str(board), window=10)
    begun = time.monotonic()
    report = send_window(job, lambda *_: 5, lambda _: None, lambda: 3, burst=5, stall_s=0.05, count_max=10)
    assert report.count == 10 and time.monotonic() - begun < 5


def test_a_receiver_ends_at_the_total_and_shows_its_position(board):
    count = 0

    def read(_wait_s):
        nonlocal count
        count += 1
        if count == 7:
            Board(board).total = 7
        return True

    first_ns, last_ns = count_until_end(LoadJob(board=str(board)), read, lambda: count)
    assert (count, Board(board).acked) == (7, 7) and 0 < first_ns <= last_ns


def test_paced_messages_are_not_sent_before_their_time(board):
    sent = []
    job = LoadJob(board=str(board))
    report = send_paced(job, 1_000.0, 20, lambda number, now_ns: sent.append((number, now_ns)), lambda _: None)
    assert [number for number, _ in sent] == list(range(20)) and Board(board).total == 20
    assert all(now_ns >= report.first_ns + number * 1_000_000 for number, now_ns in sent)
    assert report.late["p50"] >= 0


class Echo(LoadSocket):
    got = b""

    def received(self, data):
        self.got += data


def test_a_socket_reads_while_it_writes_more_than_buffers_hold():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def echo():
            peer, _ = listener.accept()
            with peer:
                while data := peer.recv(1 << 16):
                    peer.sendall(data)

        thread = threading.Thread(target=echo)
        thread.start()
        member = Echo(listener.getsockname()[1])
        group = SocketGroup([member])
        sent = bytes(range(256)) * 80_000
        member.send(sent)
        group.wait(lambda one: len(one.got) == len(sent), "the echo")
        member.sock.close()
        thread.join()
    assert member.got == sent
