"""Partition keys and priority on a real server, over HTTP and a WebSocket."""

from __future__ import annotations

import pytest

from tests.integration.serving import Http, envelope, run, sockets

CONFIG = """
streams:
  perStreamCaps:
    "keyed": { partitioned: true }
    "urgent": { priority: true }
"""


@pytest.mark.promise(
    "Streams", "`partitioned`: one envelope of a key is leased at a time, other keys flow, keys take turns"
)
def test_keys_and_levels_decide_who_is_next(start_server):
    server = start_server(config=CONFIG)
    http = Http(server.http)

    def post(to, *envelopes):
        return http.post("/v1/enqueue", {"to": to, "envelopes": list(envelopes)})

    async def go():
        keyed = [envelope(id_, partitionKey=id_[0]) for id_ in ("a1", "a2", "b1")]
        assert post("keyed", *keyed).status == 200
        refused = post("keyed", envelope("x", headers={"partitionKey": 7}))
        assert (refused.status, refused.json["error"]["ref"]) == (400, "headers.partitionKey")
        async with sockets(server.http) as ways:
            peer = await ways.subscribe("keyed", "credit=10")
            assert [one["deliver"]["id"] for one in await peer.deliveries(2)] == ["a1", "b1"]
            await peer.nothing()
            why = http.get("/v1/streams/keyed/explain").json
            blocked = next(reason for reason in why["reasons"] if reason["code"] == "key_blocked")
            assert (blocked["count"], blocked["keys"], why["flowing"]) == (1, 1, False)
            await peer.say({"ack": "a1"})
            assert [one["deliver"]["id"] for one in await peer.deliveries(1)] == ["a2"]
        levels = (("1", "low"), ("2", None), ("3", "9"), ("4", "high"))
        post("urgent", *(envelope(id_, headers={"priority": level}) for id_, level in levels))
        pulled = http.post("/v1/pull", {"stream": "urgent", "max": 4}).json["deliveries"]
        assert [one["deliver"]["id"] for one in pulled] == ["3", "4", "2", "1"]

    run(go())
