"""The location of the lake: URLs and paths, what a data directory records, credentials that no text shows."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.core.errors import PenstockError
from penstock.journal.lake_location import (
    NewFile,
    ObjectPath,
    StoreError,
    copy_file,
    lake_of,
    parse_lake,
    read_credentials,
    record_lake,
    remove_tree,
    side_of,
    size_and_time,
    store_error,
)

SECRET = "wJalrXUtnFEMI"


def test_a_directory_without_a_record_has_its_own_lake(tmp_path: Path) -> None:
    assert lake_of(tmp_path) == side_of(lake_of(tmp_path)) == tmp_path / "lake"


def test_a_directory_records_its_lake_and_where_the_credentials_are(tmp_path: Path) -> None:
    lake = parse_lake("s3a://bucket/a/b/", str(tmp_path / "keys"), tmp_path / "lake")
    record_lake(tmp_path, lake)
    found = lake_of(tmp_path)
    assert found == lake == pickle.loads(pickle.dumps(lake))
    assert isinstance(found, ObjectPath)
    assert (str(found), found.credentials, side_of(found)) == (
        "s3://bucket/a/b",
        str(tmp_path / "keys"),
        tmp_path / "lake",
    )
    table = found / "events"
    assert (str(table), table.name, table.parent, side_of(table)) == (
        "s3://bucket/a/b/events",
        "events",
        found,
        tmp_path / "lake" / "events",
    )
    record_lake(tmp_path, tmp_path / "lake")
    assert lake_of(tmp_path) == tmp_path / "lake"
    assert not (tmp_path / "lake.json").exists()


def test_a_path_may_be_a_lake(tmp_path: Path) -> None:
    record_lake(tmp_path, parse_lake(f"file://{tmp_path}/elsewhere"))
    assert lake_of(tmp_path) == side_of(lake_of(tmp_path)) == tmp_path / "elsewhere"


@pytest.mark.parametrize(
    "text",
    [
        "ftp://host/x",
        "s3://",
        "s3://bucket/x?y=1",
        "https://user:secret@host/x",
        "abfss://c:secret@account.dfs.core.windows.net/x?y=1",
        "s3:/x:secret@y",
        "file:/x",
        "file://x/y",
        " ",
    ],
)
def test_other_urls_are_refused_without_their_secrets(text: str) -> None:
    with pytest.raises(PenstockError, match=r"cannot be a lake") as caught:
        parse_lake(text)
    assert "secret" not in str(caught.value)
    assert "s3://" in caught.value.hint


def test_credentials_are_lines_and_errors_quote_none(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text(f"# a comment\n\nexport AWS_ACCESS_KEY_ID=AKIA\naws_secret_access_key='{SECRET}'\n")
    assert read_credentials(str(file)) == {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": SECRET}
    assert SECRET not in repr(parse_lake("s3://bucket", str(file)))
    file.write_text(f"AWS_ACCESS_KEY_ID=AKIA\n{SECRET}\n")
    with pytest.raises(StoreError, match="line 2") as caught:
        read_credentials(str(file))
    assert SECRET not in str(caught.value)
    for mode in (0o640, 0o604):
        file.chmod(mode)
        with pytest.raises(StoreError, match="other users can read") as caught:
            read_credentials(str(file))
        assert "chmod 600" in caught.value.hint
    with pytest.raises(StoreError, match="cannot be read: No such file") as caught:
        read_credentials(str(tmp_path / "none"))
    assert caught.value.code == "LakeUnavailable"


def test_a_failure_of_a_store_shows_no_signature() -> None:
    error = OSError(f"Error performing GET https://x.blob.core.windows.net/c/a?sig={SECRET}&se=1 - HTTP error")
    assert SECRET not in str(store_error(error, "abfss://c@x.dfs.core.windows.net"))


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("404 Not Found <Error><Code>NoSuchBucket</Code></Error>", "the bucket does not exist", "create it"),
        (
            "403 Forbidden <Error><Code>SignatureDoesNotMatch</Code></Error>",
            "refuses the credentials",
            "lake_credentials",
        ),
        ("Server returned non-2xx status code 403 Forbidden", "refuses the credentials", "lake_credentials"),
        ("503 <Error><Code>SlowDown</Code></Error>", "answered SlowDown", "network"),
        ("tcp connect error Connection refused (os error 111)", "Connection refused", "network"),
    ],
)
def test_a_failure_of_a_store_says_what_to_do(text: str, what: str, hint: str) -> None:
    error = store_error(OSError(text), "s3://bucket")
    assert what in error.message
    assert hint in error.hint


def test_a_new_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    file = NewFile(tmp_path / "a" / "one.parquet")
    Path(file.sink).write_bytes(b"12345")
    assert not (tmp_path / "a" / "one.parquet").exists()
    assert file.finish() == size_and_time(tmp_path / "a" / "one.parquet")
    assert size_and_time(tmp_path / "a" / "one.parquet")[0] == 5
    other = NewFile(tmp_path / "a" / "two.parquet")
    Path(other.sink).write_bytes(b"1")
    other.abandon()
    copy_file(tmp_path / "a" / "one.parquet", tmp_path / "b" / "one.parquet")
    assert sorted(path.name for path in tmp_path.rglob("*.parquet*")) == ["one.parquet", "one.parquet"]
    remove_tree(tmp_path / "b")
    assert not (tmp_path / "b").exists()
