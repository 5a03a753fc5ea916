"""The address of a server: URLs, and the endpoint file that a running server writes."""

from __future__ import annotations

import errno
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import msgspec

from penstock.core.errors import PenstockError, Refusal

DEFAULT_URL = "tcp://127.0.0.1:9787"
DEFAULT_PORT = 9787
DEFAULT_HTTP_URL = "http://localhost:8787"
ENDPOINTS_FILE = Path("penstock-data/run/endpoints.json")
GATEWAY_FILES = (Path("penstock/run/endpoints.json"), Path(".mew/penstock/run/endpoints.json"))
"""Where `penstock gateway start` writes them: next to the space's file, or in `.mew`."""
CONTROL_PATH = "/v1/control"
STATUSES = {401: "Unauthorized", 403: "Forbidden", 404: "UnknownRoute", 429: "RateLimited", 503: "Draining"}
"""The error of an answer that is not ours, by its HTTP status."""
_HINT = "use `tcp://host:port`, `unix:/path`, or `http://host:port`"
TOKEN_HINT = (
    "give a token that it knows: `token=…` in Python, `--token` on the command line, or PENSTOCK_TOKEN; "
    "`penstock token new` makes one"
)


class Address(NamedTuple):
    """An address that speaks Control v1 lines."""

    kind: Literal["tcp", "unix", "ws"]
    url: str
    """The URL to show; for `ws` also the one to dial."""
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_loopback(self) -> bool:
        """Whether what is sent there stays on this machine, unless a tunnel takes it further."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class ServerEndpoints(msgspec.Struct, frozen=True):
    """The contents of `run/endpoints.json`; listeners that are off are absent or null."""

    pid: int = 0
    version: str = ""
    http: str = ""
    control: str | None = None
    pub: str | None = None
    pull: str | None = None
    console: str | None = None
    ws: str | None = None
    """The second HTTP port."""


def parse(url: str) -> Address:
    """Parse a URL. Raises `InvalidRequest` if it cannot carry Control v1."""
    if url.startswith("unix:"):
        path = url.removeprefix("unix:")
        path = path[2:] if path.startswith("//") else path
        if not path:
            raise _unusable(url)
        return Address("unix", f"unix:{path}", path=path)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _unusable(url) from None
    if not parts.hostname:
        raise _unusable(url)
    match parts.scheme:
        case "tcp":
            number = DEFAULT_PORT if port is None else port
            return Address("tcp", f"tcp://{parts.netloc}", host=parts.hostname, port=number)
        case "ws" | "wss" | "http" | "https":
            scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
            path = CONTROL_PATH if parts.path in {"", "/"} else parts.path
            return Address("ws", urlunsplit((scheme, parts.netloc, path, parts.query, "")))
        case _:
            raise _unusable(url)


def wrong_protocol(url: str) -> Refusal:
    """The error of a port that does not speak what its URL says: most often the other port of the same server."""
    place = urlsplit(url).netloc
    if url.startswith("tcp:"):
        hint = f"if it is the HTTP port, use `http://{place}`; the control port is {DEFAULT_PORT} by default"
        return Refusal("Unreachable", f"{url} does not speak Control v1", hint=hint)
    hint = f"if it is the control port, `connect` takes `tcp://{place}`; the HTTP port is 8787 by default"
    return Refusal("Unreachable", f"{url} gave no HTTP answer", hint=hint)


def reason_of(error: OSError) -> str:
    """The reason of a failed connection, without error numbers."""
    if error.errno == errno.ECONNREFUSED:
        return "connection refused"
    return error.strerror or str(error)


def bad_token(url: str, token: str | None) -> Refusal:
    """The error of a server that rejects the token, or needs one."""
    return Refusal("Unauthorized", f"{url} {'does not know this' if token else 'needs a'} token", hint=TOKEN_HINT)


def given_token(token: str | None) -> str | None:
    """The token as it was given. An empty one is refused, because another token would be used in its place."""
    if token == "":
        hint = "leave `token` out to use PENSTOCK_TOKEN, or in a space the local operator token"
        raise PenstockError(Refusal("InvalidRequest", "the token is empty", ref="token", hint=hint))
    return token


def read_endpoints(file: Path = ENDPOINTS_FILE) -> ServerEndpoints | None:
    """The endpoints of the server that runs on this data directory, or None when none does."""
    try:
        endpoints = msgspec.json.decode(file.read_bytes(), type=ServerEndpoints)
    except (OSError, msgspec.DecodeError):
        return None
    return endpoints if _is_alive(endpoints.pid) else None


def discover(url: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The URL to use: the one given, `PENSTOCK_URL`, a server running on `./penstock-data`, the default."""
    if url or (url := environ.get("PENSTOCK_URL")):
        return url
    endpoints = read_endpoints()
    if endpoints is not None:
        return endpoints.control or endpoints.http or DEFAULT_URL
    return DEFAULT_URL


def discover_http(url: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The same for what only the HTTP door has; the control door of a server that runs here leads to its HTTP door.

    Where none runs on `./penstock-data`, a gateway that was started here is meant.
    """
    endpoints = read_endpoints() or next(filter(None, map(read_endpoints, GATEWAY_FILES)), None)
    url = url or environ.get("PENSTOCK_URL")
    if url and (endpoints is None or url != endpoints.control):
        return url
    return (endpoints and endpoints.http) or url or DEFAULT_HTTP_URL


def operator_token(url: str, file: Path | None = None) -> str | None:
    """The operator token next to the endpoint file, if `url` is an address of that server.

    The token is never offered to any other address: a mistyped host must not learn it.
    """
    for place in (ENDPOINTS_FILE, *GATEWAY_FILES) if file is None else (file,):
        endpoints = read_endpoints(place)
        if endpoints is None or url not in {endpoints.control, endpoints.http}:
            continue
        try:
            return place.with_name("operator.token").read_text("utf-8").strip() or None
        except OSError:
            return None
    return None


def _is_alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True


def unreachable(message: str, hint: str | None = None) -> PenstockError:
    return PenstockError(Refusal("Unreachable", message, hint=hint))


def _unusable(url: str) -> PenstockError:
    return PenstockError(Refusal("InvalidRequest", f"`{url}` is not the URL of a control door", hint=_HINT))
