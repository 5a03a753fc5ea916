"""How commands find a cluster: options, variables, and what is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.cli.ops.cluster.place import ClusterPlace, NatsPlace, servers_of
from penstock.core.errors import InvalidRequest, PenstockError


def test_options_name_the_servers_and_who_signs_in(tmp_path: Path) -> None:
    found = servers_of(NatsPlace(join="nats://a,b:5", nats_creds=tmp_path / "creds", nats_ca=tmp_path / "ca"))
    assert found.urls == ("nats://a:4222", "nats://b:5")
    assert (found.creds, found.ca) == (tmp_path / "creds", tmp_path / "ca")


def test_without_servers_the_hint_names_the_option() -> None:
    with pytest.raises(InvalidRequest) as raised:
        servers_of(ClusterPlace())
    assert "--join" in raised.value.hint


def test_without_the_client_of_nats_the_hint_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(PenstockError) as raised:
        servers_of(NatsPlace(join="nats://a"))
    assert "penstock[cluster]" in raised.value.hint
