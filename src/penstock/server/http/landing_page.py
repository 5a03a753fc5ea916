"""What somebody reads who opens the server's address in a browser: what to try first."""

from __future__ import annotations

COURIER = """Penstock is running.

Send a message     curl -d '{"to":"sam","type":"hello","payload":{}}' %(url)s/v1/send
Take it            curl -d '{"stream":"agents/sam/inbox"}' %(url)s/v1/pull
The whole surface  %(url)s/openapi.json
"""
GATEWAY = """Penstock is running, as a gateway of MEW spaces.

Who is there       curl %(url)s/participants
Say something      curl -H 'Authorization: Bearer TOKEN' -d '{"kind":"chat","payload":{"text":"hello"}}' %(url)s/participants/NAME/messages
Join               a WebSocket to the same address, first message {"type":"join","participantId":"NAME","token":"TOKEN"}
"""


def landing(url: str, *, serves_courier: bool) -> str:
    """The page of a server, or of a gateway that has spaces and nothing else."""
    return (COURIER if serves_courier else GATEWAY) % {"url": url}
