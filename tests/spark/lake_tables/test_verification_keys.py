"""Keys of token streams, given by topic or in a file."""

from __future__ import annotations

import msgspec
import pytest

from penstock.spark.lake_tables.verification_keys import KeyFile, KeysError, TokenKey, known_keys, topic_hash

TOPIC = "0f" * 32
KEY = TokenKey(TOPIC, b"\x07" * 32)
HASH = topic_hash(TOPIC)


def line(**more: str) -> str:
    """A line of a file of keys."""
    return msgspec.json.encode({"topic": TOPIC, "mac_key": "07" * 32, **more}).decode()


@pytest.mark.promise("Spark: pipeline", "a key file is readable by its owner only, and is read again when it grows")
def test_a_file_of_keys_is_read_again_when_it_grows(tmp_path):
    path = tmp_path / "keys"
    path.touch(0o600)
    keys = KeyFile(path)
    assert keys.keys() == {}
    path.write_text(f"{line()}\n\n{line()[:20]}")  # the last line is still being written
    assert keys.keys() == {HASH: KEY}
    assert keys.keys() is keys.keys()
    path.write_text(line())  # whole, and without an end
    assert keys.keys() == {HASH: KEY}
    assert "07" * 32 not in repr(KEY) and TOPIC not in repr(KEY)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1"),
        ('{"topic":"x","mac_key":"07"}', "64 lowercase"),
        (line(mac_key="07"), "32 bytes"),
        (line(mac_key="00" * 32), "32 bytes"),
        (line(suite="md5"), "md5"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, said):
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(f"{text}\n")
    with pytest.raises(KeysError, match=said):
        KeyFile(path).keys()


@pytest.mark.promise("Spark: pipeline", "a key file is readable by its owner only, and is read again when it grows")
def test_keys_that_others_may_read_are_refused(tmp_path):
    path = tmp_path / "keys"
    with pytest.raises(KeysError, match="No such file"):
        KeyFile(path).keys()
    path.touch(0o640)
    with pytest.raises(KeysError, match="chmod 600"):
        KeyFile(path).keys()


def test_keys_are_given_by_topic_as_bytes_or_text():
    assert known_keys({TOPIC: b"\x07" * 32}) == known_keys({TOPIC: "07" * 32}) == {HASH: KEY}
    with pytest.raises(KeysError, match="32 bytes"):
        known_keys({TOPIC: "zz"})
