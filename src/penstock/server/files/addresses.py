"""Addresses to listen on, addresses of proxies, and which of them are this machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import NamedTuple, TypeAlias

LOCALHOST = "localhost"
UNIX_PREFIX = "unix:"
OFF = "off"

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,252})")


class HostPort(NamedTuple):
    """A TCP address to listen on."""

    host: str
    port: int

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts to bind: `localhost` means both loopback addresses, because clients may use either."""
        return ("127.0.0.1", "::1") if self.host.lower() == LOCALHOST else (self.host,)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Network: TypeAlias = IPv4Network | IPv6Network
Control: TypeAlias = HostPort | Path | None
"""The control address: TCP, a Unix socket, or off."""


def parse_host_port(text: str) -> HostPort:
    """Parse `HOST:PORT` or `[IPV6]:PORT`; raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"`{text}` should be HOST:PORT, e.g. `localhost:8787`")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not is_ip(host) or ":" not in host:
            raise ValueError(f"`{host}` is not an IPv6 address")
    elif ":" in host:
        raise ValueError(f"`{text}` should have its IPv6 address in brackets, e.g. `[::1]:8787`")
    elif not _HOST_NAME.fullmatch(host):
        raise ValueError(f"`{host}` is not a host name or an address")
    return HostPort(host, parse_port(port))


def parse_port(text: str) -> int:
    """Parse a port number; 0 binds a free one."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= 65_535):
        raise ValueError(f"`{text}` is not a port from 0 to 65535")
    return int(text)


def parse_control(text: str) -> Control:
    """Parse `HOST:PORT`, `unix:PATH` or `off`; raises ValueError."""
    if text == OFF:
        return None
    if text.startswith(UNIX_PREFIX):
        path = text.removeprefix(UNIX_PREFIX)
        if not path or "\0" in path:
            raise ValueError(f"`{text}` should name a path after `{UNIX_PREFIX}`")
        return Path(path)
    return parse_host_port(text)


def parse_alias(text: str) -> HostPort | None:
    """Parse `HOST:PORT` or `off`; raises ValueError."""
    return None if text == OFF else parse_host_port(text)


def parse_network(text: str) -> Network:
    """Parse an address or a network such as `10.0.0.0/8`; raises ValueError."""
    return ip_network(text, strict=False)


def client_address(peer: str, forwarded_for: str | None, trusted: Sequence[Network]) -> str:
    """The client address of a request: the last hop that is not a trusted proxy.

    Each proxy appends its peer, so entries are trusted from the right as long as a trusted proxy wrote them; entries further left may be
    forged. An entry that is not an address ends the search.
    """
    address = peer
    if not trusted or forwarded_for is None:
        return address
    for hop in reversed(forwarded_for.split(",")):
        if not is_among(address, trusted):
            break
        named = _hop_address(hop.strip())
        if named is None:
            break
        address = named
    return address


@lru_cache(maxsize=4096)
def payer_address(peer: str) -> str:
    """The address for rate limits: IPv6 by its /64 network, which one customer usually has."""
    if not is_ip(peer):
        return peer
    address = _plain(ip_address(peer))
    return str(address) if isinstance(address, IPv4Address) else str(ip_network((address, 64), strict=False))


def _hop_address(text: str) -> str | None:
    """An address with or without a port, as proxies write it."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    return text if is_ip(text) else None


def is_among(host: str, networks: Sequence[Network]) -> bool:
    """Whether a host is an address of one of these networks."""
    if not is_ip(host):
        return False
    address = _plain(ip_address(host))
    return any(address in network for network in networks)


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address of a peer that a dual-stack listener reports as ::ffff:127.0.0.1."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


@lru_cache(maxsize=256)  # names come from requests, and may be long
def is_loopback(host: str) -> bool:
    """Whether a host name or address is certainly this machine; other names are not resolved."""
    if host.lower() == LOCALHOST:
        return True
    if not is_ip(host):
        return False
    return _plain(ip_address(host)).is_loopback


def is_ip(text: str) -> bool:
    """Whether a text is an IPv4 or IPv6 address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
