"""Commands that enqueue: from arguments, files and stdin."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import ok


@pytest.mark.promise("SDK and command line", "`enqueue` and `subscribe` work")
def test_enqueue_from_arguments_files_and_stdin(cli, stream, tmp_path):
    one = ok(cli("enqueue", "--to", stream, "--type", "t", "--id", "one", "--payload", '{"n": 1}'))
    assert one == f"stored: one in {stream} as seq 1\n"
    (tmp_path / "many.json").write_text(
        json.dumps([{"id": f"a{n}", "type": "t", "payload": n} for n in range(3)], indent=1)
    )
    assert "stored 3" in ok(cli("enqueue", "--to", stream, "--file", "many.json"))
    lines = "\n".join(json.dumps({"id": f"l{n}", "to": stream, "type": "t", "payload": n}) for n in range(600))
    assert "stored 600" in ok(cli("enqueue", "--file", "-", stdin=lines))
    assert json.loads(ok(cli("stats", stream, "--json")))["depth"] == 604
    bad = cli("enqueue", "--to", stream, "--file", "-", stdin='{"id":"x","type":"t","payload":1}\n{oops\n')
    assert bad.returncode == 1 and "error: InvalidJSON: line 2" in bad.stderr
