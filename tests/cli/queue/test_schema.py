"""Schemas are listed, checked and used to validate envelopes."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import ok


@pytest.mark.promise(
    "Schemas, skills and observability",
    "`schema.validate`, `/v1/schemas` and `penstock schema` validate envelopes",
)
def test_schemas_are_checked_without_a_server(cli, tmp_path):
    (tmp_path / "schemas/a").mkdir(parents=True)
    good = tmp_path / "schemas/a/b@v1.json"
    good.write_text('{"type": "integer"}')
    assert json.loads(ok(cli("schema", "check", "schemas", "--json")))["schemas"] == ["a/b@v1"]
    for payload, code in (("1", 0), ('"x"', 3)):
        envelope = f'{{\n"schema": "a/b@v1.7",\n"payload": {payload}}}\n'
        done = cli("schema", "validate", "-", "--dir", "schemas", "--json", stdin=envelope)
        assert (done.returncode, json.loads(done.stdout)["ok"]) == (code, code == 0)
    good.write_text("{")
    done = cli("schema", "check", "schemas")
    assert done.returncode == 3 and "problem: `a/b@v1.json` is not JSON" in done.stdout.replace("`:", "`")
    assert cli("schema", "validate", "no-such-file").stderr.startswith("error: InvalidRequest:")


def test_a_server_without_schemas_says_so(cli):
    assert json.loads(ok(cli("schema", "ls", "--json"))) == {"schemas": []}
    done = cli("schema", "validate", "-", stdin='{"schema": "a/b@v1", "payload": 1}\n')
    assert done.returncode == 1 and done.stderr.startswith("error: UnknownSchema:")
