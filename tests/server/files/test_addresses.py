"""Listen addresses, and which of them are local."""

from pathlib import Path

import pytest

from penstock.server.files.addresses import (
    HostPort,
    client_address,
    is_loopback,
    parse_control,
    parse_host_port,
    parse_network,
    payer_address,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:8787", "localhost", 8787),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:65535", "::1", 65535),
        ("broker-1.example.com:80", "broker-1.example.com", 80),
        ("0.0.0.0:1", "0.0.0.0", 1),
    ],
)
def test_an_address_reads_back_as_written(text: str, host: str, port: int) -> None:
    address = parse_host_port(text)
    assert address == HostPort(host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "localhost", ":80", "localhost:", "localhost:x", "localhost:65536", "localhost:-1", "::1:80", "[::1]", "[x]:1", "a b:1", "a/b:1", "a:٣"],
)  # fmt: skip
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="`"):
        parse_host_port(text)


def test_localhost_binds_both_families() -> None:
    assert HostPort("localhost", 1).hosts == ("127.0.0.1", "::1")
    assert HostPort("10.0.0.1", 1).hosts == ("10.0.0.1",)


def test_control_is_tcp_a_socket_or_nothing() -> None:
    assert parse_control("127.0.0.1:9787") == HostPort("127.0.0.1", 9787)
    assert parse_control("unix:run/control.sock") == Path("run/control.sock")
    assert parse_control("off") is None
    for text in ("unix:", "on", "Off"):
        with pytest.raises(ValueError):
            parse_control(text)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.255.0.3", "::1", "::ffff:127.0.0.1"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "0.0.0.0",
        "::",
        "10.0.0.1",
        "::ffff:10.0.0.1",
        "localhost.example.com",
        "127.0.0.1.nip.io",
        "0x7f.1",
    ],
)
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.promise(
    "Limits, reload and HTTP details", "`X-Forwarded-For` is used only from trusted proxies, IPv6 by /64"
)
@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", "10.9.9.9", "192.0.2.1"),  # no proxy of ours: whatever it says is its own invention
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "6.6.6.6, 192.0.2.7", "192.0.2.7"),  # the left one may be invented
        ("10.0.0.1", "6.6.6.6, 192.0.2.7, 10.0.0.2", "192.0.2.7"),
        ("10.0.0.1", "192.0.2.7:4711", "192.0.2.7"),
        ("10.0.0.1", "[2001:db8::7]:4711", "2001:db8::7"),
        ("10.0.0.1", "2001:db8::7", "2001:db8::7"),
        ("10.0.0.1", "192.0.2.7, unknown", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("::ffff:10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("fd00::1", "192.0.2.7", "192.0.2.7"),
    ],
)
def test_behind_proxies_the_last_hop_that_is_none_of_ours_counts(peer: str, forwarded: str | None, client: str) -> None:
    trusted = [parse_network("10.0.0.0/8"), parse_network("fd00::1")]
    assert client_address(peer, forwarded, trusted) == client
    assert client_address(peer, forwarded, []) == peer


@pytest.mark.promise(
    "Limits, reload and HTTP details", "`X-Forwarded-For` is used only from trusted proxies, IPv6 by /64"
)
@pytest.mark.parametrize(
    ("peer", "payer"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("unix", "unix"),
    ],
)
def test_an_ipv6_customer_is_counted_by_the_network(peer: str, payer: str) -> None:
    assert payer_address(peer) == payer
