"""Offsets in checkpoints and options: a fixed shape, words, and refusals that name their source."""

from __future__ import annotations

import json

import pytest

from penstock.spark.errors import SourceError
from penstock.spark.source.offsets import EARLIEST, LATEST, Point, decode, encode, parse

A, B = "ab" * 16, "cd" * 16


def test_points_survive_the_checkpoint() -> None:
    points = {B: Point(7), A: Point(42, epoch=2)}
    value = encode(points)
    assert value == {"v": 1, "journals": {A: {"0": 42}, B: {"0": 7}}, "epochs": {A: {"0": 2}}}
    assert list(value["journals"]) == [A, B], "in one order, so equal points are equal text"
    assert decode(json.loads(json.dumps(value))) == points


def test_epochs_are_written_only_after_a_recovery_that_lost_rows() -> None:
    assert encode({A: Point(0)}) == {"v": 1, "journals": {A: {"0": 0}}}
    assert encode({}) == {"v": 1, "journals": {}} and decode(encode({})) == {}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1], "the checkpoint has invalid offsets"),
        ({"journals": {}}, "missing required field `v`"),
        ({"v": 1, "journals": {A: {"0": "7"}}}, "the checkpoint has invalid offsets"),
        ({"v": 2, "journals": {}}, "offsets of version 2, but this Penstock reads version 1"),
        ({"v": 1, "journals": {A: {"1": 3}}}, "names shards 1 of a journal that has only shard 0"),
        ({"v": 1, "journals": {A: {"0": 1, "1": 3}}}, "names shards 0, 1"),
        ({"v": 1, "journals": {A: {"0": -1}}}, "the minimum is 0"),
    ],
    ids=str,
)
def test_a_value_of_another_shape_is_refused(value: object, said: str) -> None:
    with pytest.raises(SourceError) as caught:
        decode(value)
    assert said in str(caught.value)


def test_words_of_options_are_read_in_any_case() -> None:
    assert parse("startingOffsets", " Earliest ") == EARLIEST
    assert parse("startingOffsets", "latest") == parse("endingOffsets", "LATEST") == LATEST


def test_an_option_may_name_special_offsets_and_a_checkpoint_may_not() -> None:
    value = {"v": 1, "journals": {A: {"0": EARLIEST}, B: {"0": LATEST}}}
    assert parse("startingOffsets", json.dumps(value)) == {A: Point(EARLIEST), B: Point(LATEST)}
    with pytest.raises(SourceError, match="the minimum is 0"):
        decode(value)
    value["journals"] = {A: {"0": EARLIEST - 1}}
    with pytest.raises(SourceError, match=r"`startingOffsets` has offset -3.*the minimum is -2"):
        parse("startingOffsets", json.dumps(value))


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("startingOffsets", "soon", "`startingOffsets` is `soon`"),
        ("startingOffsets", "soon", "write `earliest`, `latest` or offsets as JSON"),
        ("endingOffsets", "earliest", "write `latest` or offsets as JSON"),
        ("endingOffsets", "x" * 500, f"`{'x' * 80}`"),
    ],
)
def test_a_text_that_is_no_offset_is_refused_with_the_words_that_are(option: str, text: str, said: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse(option, text)
    assert said in str(caught.value)
