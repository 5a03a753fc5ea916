"""The child process of `tests/cloud_stores.py`: as much of Google's or of Azure's object store as a lake needs, in memory.

`python -m tests.cloud_server gs` or `azure` prints its port and ends with stdin. Google's requests are not signed; Azure's are checked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import re
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.cloud_stores import ACCOUNT, BUCKET, KEY


class Blob(NamedTuple):
    """An object."""

    data: bytes
    generation: int
    changed_s: float


class Memory:
    """The objects of the bucket, and the parts of those that are not complete."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blobs: dict[str, Blob] = {}
        self.parts: dict[str, dict[str, bytes]] = {}
        self.numbers = itertools.count(1)

    def put(self, key: str, data: bytes, *, is_new: bool) -> Blob | None:
        """Store an object; None if it should be new and is there."""
        with self.lock:
            if is_new and key in self.blobs:
                return None
            blob = self.blobs[key] = Blob(data, next(self.numbers), time.time())
            return blob

    def listed(self, prefix: str, delimiter: str, after: str) -> tuple[list[tuple[str, Blob]], list[str]]:
        """The objects below a prefix, and with a delimiter the prefixes below it."""
        with self.lock:
            found = sorted((key, blob) for key, blob in self.blobs.items() if key.startswith(prefix) and key > after)
        if not delimiter:
            return found, []
        here = [(key, blob) for key, blob in found if delimiter not in key[len(prefix) :]]
        below = {prefix + key[len(prefix) :].split(delimiter)[0] + delimiter for key, _ in found}
        return here, sorted(below - {key + delimiter for key, _ in here})


class CloudHandler(BaseHTTPRequestHandler):
    """One connection. `place` gives the bucket and the key of a path."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for its second part
    wbufsize = -1
    memory: Memory
    missing_bucket, absent, exists = "NoSuchBucket", "NoSuchKey", 412

    def log_message(self, *_: object) -> None: ...

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        self.query = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket, _, self.key = self.place(unquote(parts.path)).partition("/")
        if (refusal := self.refusal()) is not None:
            self.fail(403, refusal)
        elif bucket != BUCKET:
            self.fail(404, self.missing_bucket)
        elif self.command in ("GET", "HEAD") and self.key:
            self.get()
        elif self.command == "GET":
            self.send(200, self.listing().encode())
        elif self.command == "DELETE":
            with self.memory.lock:
                gone = self.memory.blobs.pop(self.key, None)
            self.send(202) if gone else self.fail(404, self.absent)
        else:
            self.write()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - the names of `http.server`

    def place(self, path: str) -> str:
        return path.lstrip("/")

    def refusal(self) -> str | None:
        return None

    def get(self) -> None:
        blob = self.memory.blobs.get(self.key)
        if blob is None:
            self.fail(404, self.absent)
            return
        size = len(blob.data)
        first, last, status = 0, size, 200
        if given := self.headers.get("Range"):
            begin, _, stop = given.removeprefix("bytes=").partition("-")
            first = int(begin) if begin else max(size - int(stop), 0)
            last, status = (min(int(stop) + 1, size) if begin and stop else size), 206
        named = {"Content-Range": f"bytes {first}-{last - 1}/{size}"} if status == 206 else {}
        self.send(status, blob.data[first:last], blob, named)

    def listing(self) -> str:
        raise NotImplementedError

    def write(self) -> None:
        raise NotImplementedError

    def store(self, data: bytes, *, is_new: bool, status: int = 200) -> None:
        blob = self.memory.put(self.key, data, is_new=is_new)
        self.fail(self.exists, "PreconditionFailed") if blob is None else self.send(status, b"", blob)

    def fail(self, status: int, code: str) -> None:
        self.send(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    def send(
        self, status: int, body: bytes = b"", blob: Blob | None = None, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        about = {"Content-Type": "application/xml", "Content-Length": str(len(body)), **(headers or {})}
        if blob is not None:
            about |= {"ETag": f'"{blob.generation}"', "Last-Modified": formatdate(blob.changed_s, usegmt=True)}
            about |= {"x-goog-generation": str(blob.generation), "x-ms-version-id": str(blob.generation)}
        for name, value in about.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class GoogleHandler(CloudHandler):
    """The XML interface of Google's store."""

    def listing(self) -> str:
        after = self.query.get("start-after", "")
        here, below = self.memory.listed(self.query.get("prefix", ""), self.query.get("delimiter", ""), after)
        rows = [
            f"<Contents><Key>{escape(key)}</Key><Size>{len(blob.data)}</Size><ETag>{blob.generation}</ETag><LastModified>"
            f"{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(blob.changed_s))}</LastModified></Contents>"
            for key, blob in here
        ]
        rows += [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in below]
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>"

    def write(self) -> None:
        is_new = self.headers.get("x-goog-if-generation-match") == "0"
        upload = self.query.get("uploadId", "")
        if "uploads" in self.query:
            upload = f"upload-{next(self.memory.numbers)}"
            self.memory.parts[upload] = {}
            answer = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            self.send(200, answer.encode())
        elif "partNumber" in self.query:
            self.memory.parts[upload][self.query["partNumber"]] = self.body
            self.send(200, b"", Blob(b"", next(self.memory.numbers), time.time()))
        elif upload:
            parts = self.memory.parts.pop(upload)
            blob = self.memory.put(self.key, b"".join(parts[one] for one in sorted(parts, key=int)), is_new=is_new)
            answer = "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
            self.fail(412, "PreconditionFailed") if blob is None else self.send(200, answer.encode(), blob)
        elif source := self.headers.get("x-goog-copy-source"):
            source = unquote(source).lstrip("/").partition("/")[2]
            self.store(self.memory.blobs[source].data, is_new=is_new)
        else:
            self.store(self.body, is_new=is_new)


class AzureHandler(CloudHandler):
    """The interface of Azure's blobs, with the key of one account."""

    missing_bucket, absent, exists = "ContainerNotFound", "BlobNotFound", 409

    def place(self, path: str) -> str:
        return path.lstrip("/").removeprefix(f"{ACCOUNT}/")

    def refusal(self) -> str | None:
        """The signature covers the method, some headers, the path and the query."""
        names = ("Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date",
                 "If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range")  # fmt: skip
        values = [self.headers.get(name) or "" for name in names]
        values[2] = values[2] if values[2] != "0" else ""
        own = sorted((name.lower(), value) for name, value in self.headers.items() if name.lower().startswith("x-ms-"))
        signed = [self.command, *values, *(f"{name}:{value.strip()}" for name, value in own)]
        signed.append(f"/{ACCOUNT}{urlsplit(self.path).path}")
        signed += [f"{name}:{value}" for name, value in sorted(self.query.items())]
        digest = hmac.new(base64.b64decode(KEY), "\n".join(signed).encode(), hashlib.sha256).digest()
        expected = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        return None if self.headers.get("Authorization") == expected else "AuthenticationFailed"

    def listing(self) -> str:
        here, below = self.memory.listed(self.query.get("prefix", ""), self.query.get("delimiter", ""), "")
        rows = [
            f"<Blob><Name>{escape(key)}</Name><Properties><Content-Length>{len(blob.data)}</Content-Length><Etag>{blob.generation}"
            f"</Etag><Content-Type>x</Content-Type><Last-Modified>{formatdate(blob.changed_s, usegmt=True)}</Last-Modified></Properties></Blob>"
            for key, blob in here
        ]
        rows += [f"<BlobPrefix><Name>{escape(one)}</Name></BlobPrefix>" for one in below]
        return f"<EnumerationResults><Blobs>{''.join(rows)}</Blobs><NextMarker/></EnumerationResults>"

    def write(self) -> None:
        is_new = self.headers.get("If-None-Match") == "*"
        match self.query.get("comp"):
            case "block":
                self.memory.parts.setdefault(self.key, {})[self.query["blockid"]] = self.body
                self.send(201)
            case "blocklist":
                parts = self.memory.parts.pop(self.key, {})
                names = [one.text or "" for one in ElementTree.fromstring(self.body)]
                self.store(b"".join(parts[one] for one in names), is_new=is_new, status=201)
            case "batch":
                self.delete_several()
            case _ if source := self.headers.get("x-ms-copy-source"):
                key = self.place(unquote(urlsplit(source).path)).partition("/")[2]
                self.store(self.memory.blobs[key].data, is_new=is_new, status=202)
            case _:
                self.store(self.body, is_new=is_new, status=201)

    def delete_several(self) -> None:
        """Requests in a request."""
        asked = re.findall(r"Content-ID: *(\d+).*?\r\nDELETE (\S+)", self.body.decode(), re.DOTALL | re.IGNORECASE)
        answers = []
        for number, path in asked:
            with self.memory.lock:
                gone = self.memory.blobs.pop(self.place(unquote(urlsplit(path).path)).partition("/")[2], None)
            said = "202 Accepted" if gone else "404 Not Found\r\nx-ms-error-code: BlobNotFound"
            answers.append(
                f"--part\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 {said}\r\nx-ms-request-id: x\r\n\r\n"
            )
        body = "".join([*answers, "--part--\r\n"]).encode()
        self.send(202, body, None, {"Content-Type": "multipart/mixed; boundary=part"})


def main() -> None:
    kind = {"gs": GoogleHandler, "azure": AzureHandler}[sys.argv[1]]
    kind.memory = Memory()
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
