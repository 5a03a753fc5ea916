"""A file for one participant: chunks on a targeted stream, none of them lost, and a checksum at the end.

The stream declares its size, so the gateway drops nothing: it lets the sender wait for a slow receiver (`overflow="wait"`). The sender
closes the stream when the receiver has confirmed the file.

    python examples/mew/file_transfer.py [URL] [NAME=TOKEN …]
"""

import asyncio
import hashlib
import random

from room import participant, run

SIZE = 4 * 1024 * 1024
CHUNK = 64 * 1024


async def sender() -> None:
    content = random.Random(7).randbytes(SIZE)
    async with participant("file-sender") as space:
        progress = space.envelopes("file/received")
        stream = await space.open_stream(
            "file-processor",
            content_type="application/octet-stream",
            expected_size_bytes=len(content),
            metadata={"filename": "data.zip", "sha256": hashlib.sha256(content).hexdigest()},
        )
        for start in range(0, len(content), CHUNK):
            await stream.write(content[start : start + CHUNK])
        confirmed = await progress.next()
        assert confirmed is not None
        assert confirmed.payload["bytes"] == len(content)
        await stream.close()
    print(f"file-sender sent {len(content)} bytes in {len(content) // CHUNK} frames")


async def receiver(is_there: asyncio.Event) -> None:
    async with participant("file-processor") as space:
        opened, frames = space.envelopes("stream/open"), space.frames(overflow="wait")
        is_there.set()
        announced = await opened.next()
        assert announced is not None
        about = space.active_streams[announced.payload["stream_id"]]
        digest = hashlib.sha256()
        size = count = 0
        while size < about["expected_size_bytes"]:
            frame = await frames.next()
            assert frame is not None
            digest.update(frame.data)
            size += len(frame.data)
            count += 1
        await space.send("file/received", {"bytes": size}, to=about["owner"])
    is_sound = digest.hexdigest() == about["metadata"]["sha256"]
    print(f"file-processor received {about['metadata']['filename']}: {size} bytes in {count} frames, sound: {is_sound}")
    assert is_sound


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        is_there = asyncio.Event()
        group.create_task(receiver(is_there))
        await is_there.wait()
        group.create_task(sender())


if __name__ == "__main__":
    run(main())
