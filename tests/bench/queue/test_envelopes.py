"""Envelopes have the size asked for, and each message carries its numbers once."""

from __future__ import annotations

import json

import pytest

from penstock.bench.queue.envelopes import EnqueueLines, InboxLines, Posts, envelope


@pytest.mark.parametrize("size", [220, 300, 5000])
def test_envelopes_have_the_size_asked_for(size):
    made = envelope("bench/a", size, "t") % (7, 123)
    assert len(made) == size
    assert json.loads(made)["payload"]["t"].lstrip("0") == "123"


def test_too_small_a_size_is_refused():
    with pytest.raises(ValueError, match="at least"):
        envelope("bench/a", 50, "t")


@pytest.mark.parametrize("batch", [1, 3])
def test_lines_carry_every_number_once(batch):
    lines = [json.loads(line) for line in EnqueueLines("s", 300, "t", batch).make(6, 2, 1).splitlines()]
    found = [env["id"] for line in lines for env in ([line["env"]] if batch == 1 else line["env"])]
    assert found == [f"t-{number:010d}" for number in range(6, 6 + 2 * batch)]


def test_inboxes_take_their_lines_in_turn():
    lines = [json.loads(line) for line in InboxLines("s", 300, "t", 2).make(1, 3, 1).splitlines()]
    assert [(line["to"], line["env"]["id"]) for line in lines] == [
        (f"agents/s-{number % 2}/inbox", f"t-{number:010d}") for number in (1, 2, 3)
    ]
    assert all(line["env"]["to"] == line["to"] for line in lines)


def test_posts_say_their_length():
    head, _, body = Posts("s", 300, "t", 2, "h", "token").make(0, 1).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head and len(json.loads(body)["envelopes"]) == 2
