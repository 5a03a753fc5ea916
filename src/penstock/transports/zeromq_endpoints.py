"""ZeroMQ endpoints as texts: their syntax, and whether other machines can reach them."""

# size: the config checks endpoints without loading ZeroMQ

from __future__ import annotations

from ipaddress import ip_address


def is_local(endpoint: str) -> bool:
    """Whether only this machine reaches an endpoint."""
    scheme, _, rest = endpoint.partition("://")
    if scheme in ("ipc", "inproc"):
        return True
    host = rest.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def endpoint_problem(endpoint: str, *, has_curve: bool) -> str | None:
    """What is wrong with an endpoint to be served; one that other machines reach needs keys."""
    scheme, slashes, rest = endpoint.partition("://")
    if not slashes or scheme not in ("tcp", "ipc", "inproc") or not rest:
        return f"`{endpoint}` is no endpoint; write tcp://HOST:PORT or ipc://PATH"
    if scheme == "ipc" and (rest.startswith("@") or "*" in rest):
        return f"`{endpoint}` is no path of a file, so nothing would keep other users out; write ipc://PATH"
    if scheme != "tcp":
        return None
    host, _, port = rest.rpartition(":")
    if not host or not (port == "*" or (port.isascii() and port.isdecimal() and int(port) < 65_536)):
        return f"`{endpoint}` has no host or no port; write tcp://HOST:PORT"
    if has_curve or is_local(endpoint):
        return None
    return (
        f"`{endpoint}` would serve other machines without encryption; make keys with "
        "`penstock token curve-keygen` and name them under `relay.curve`, or bind 127.0.0.1"
    )
