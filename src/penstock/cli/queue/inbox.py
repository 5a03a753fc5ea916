"""`penstock send`, `inbox`, `done` and `subscribe`: messages to an agent, and deliveries of a stream."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from penstock.cli.options import DEFAULTS, Common, agent_name, flag, payload_of, run
from penstock.cli.output import compact, print_json, print_line, print_note, print_result

if TYPE_CHECKING:
    from penstock.client import Client, Delivery, Sent, Settled


def _agent(text: str) -> Parameter:
    """The option `--as`."""
    return Parameter(name="--as", env_var="PENSTOCK_AGENT", help=text)


def send(
    to: str,
    payload: str,
    /,
    *,
    type_: Annotated[str, Parameter(name="--type", help="Type of the message.")] = "message",
    as_: Annotated[str | None, _agent("Your agent name.")] = None,
    id_: Annotated[str | None, Parameter(name="--id", help="Default: a new one.")] = None,
    corr: Annotated[str | None, Parameter(help="Correlation id.")] = None,
    delay_ms: Annotated[int | None, Parameter(help="Deliver after this delay.")] = None,
    schema: Annotated[str | None, Parameter(help="Schema of the payload: ns/name@vN.")] = None,
    common: Common = DEFAULTS,
) -> None:
    """Send a message to an agent's inbox, or to a stream if TO has a slash.

    PAYLOAD is JSON, or plain text. The output is one line, which begins with the state of the message and its id.

    For example:

      penstock send jen "the build is green" --as sam
      penstock send agents/jen/inbox '{"task": 7}' --type task.new
    """

    fields: dict[str, Any] = {"type": type_, "id": id_, "corr": corr, "delay_ms": delay_ms, "schema": schema}
    sent: Sent = run(common, lambda client: client.send(to, payload_of(payload), **fields), agent=as_)
    line = f"accepted {sent.id} in {sent.to} as seq {sent.seq}"
    print_result({**msgspec.to_builtins(sent), "state": "accepted"}, line, as_json=common.as_json)
    if sent.recipient is not None and not sent.recipient.present:
        never = "" if sent.recipient.known else "the recipient has never connected, and "
        print_note(f"no consumer is connected; {never}the message stays queued")


WAIT_MS = 30_000
"""Longest wait of one request; a longer one takes several."""


def inbox(
    *,
    as_: Annotated[str | None, _agent("The agent whose inbox to read.")] = None,
    wait: Annotated[float, Parameter(help="Seconds to wait for the first message.")] = 0.0,
    max_: Annotated[int, Parameter(name="--max", help="Take at most this many.")] = 10,
    ack: Annotated[bool, flag("Ack each message when it is printed.")] = False,
    lease_ms: Annotated[int | None, Parameter(help="Lease of the messages.")] = None,
    common: Common = DEFAULTS,
) -> None:
    """Take messages from `agents/<NAME>/inbox`.

    Without --ack the messages are leased to you; settle each with `penstock done`.

    For example:

      penstock inbox --as jen --wait 30
      penstock inbox --as jen --max 1 --ack --json
    """
    stream = f"agents/{agent_name(as_)}/inbox"

    async def work(client: Client) -> None:
        deadline = time.monotonic() + wait
        while True:
            wait_ms = max(0, min(WAIT_MS, int((deadline - time.monotonic()) * 1000)))
            deliveries = await client.pull(stream, max=max_, wait_ms=wait_ms, lease_ms=lease_ms, renew=False)
            if deliveries or time.monotonic() >= deadline:
                break
        for delivery in deliveries:
            # Print first: a message that is acked but never shown would be lost.
            _print_delivery(delivery, settled=ack, as_json=common.as_json)
            if ack:
                await delivery.ack()
        await client.flush()
        if not deliveries and not common.as_json:
            print_note(f"nothing in {stream}")

    run(common, work, agent=agent_name(as_))


def _print_delivery(delivery: Delivery, *, settled: bool, as_json: bool) -> None:
    if as_json:
        print_json(to_row(delivery))
        return
    envelope = delivery.envelope
    again = f", attempt {delivery.attempt}" if delivery.attempt > 1 else ""
    print_line(f"{delivery.id}  {envelope['type']}  from {envelope.get('from', '-')}{again}")
    print_line(f"  {compact(envelope['payload'])}")
    if not settled:
        print_line(f"  to settle: penstock done {delivery.id} --lease {delivery.lease_id}")


def to_row(delivery: Delivery) -> dict[str, Any]:
    """A delivery as it is on the wire."""
    return {
        "deliver": delivery.envelope,
        "stream": delivery.stream,
        "seq": delivery.seq,
        "attempt": delivery.attempt,
        "leaseId": delivery.lease_id,
        "leaseExpiresAt": delivery.lease_expires_at_ms,
    }


def done(
    id_: Annotated[str, Parameter(name="ID")],
    /,
    *,
    as_: Annotated[str | None, _agent("The agent whose inbox it came from.")] = None,
    stream: Annotated[str | None, Parameter(help="The stream it came from, instead of --as.")] = None,
    lease: Annotated[str | None, Parameter(help="Its lease id: settle exactly this delivery.")] = None,
    op: Annotated[Literal["ack", "nack", "release", "term", "extend"], Parameter()] = "ack",
    delay_ms: Annotated[int | None, Parameter(help="For nack: redeliver after this delay.")] = None,
    ms: Annotated[int | None, Parameter(help="For extend: the new lease, from now.")] = None,
    reason: Annotated[str | None, Parameter(help="For nack and term.")] = None,
    common: Common = DEFAULTS,
) -> None:
    """Settle a message that was taken with `penstock inbox`.

    For example:

      penstock done m-17 --as jen
      penstock done m-17 --lease 2f.1.a9 --op nack --delay-ms 60000
      penstock done m-17 --as jen --op term --reason "cannot be parsed"
    """
    if stream is None and lease is None:
        stream = f"agents/{agent_name(as_)}/inbox"

    fields: dict[str, Any] = {"stream": stream, "delay_ms": delay_ms, "reason": reason, "ms": ms}
    settled: Settled = run(common, lambda client: client.settle(id_, op, lease_id=lease, **fields))
    until = f"extended {id_} until {settled.lease_expires_at} (ms since 1970)"
    print_result(settled, until if op == "extend" else f"{op} {id_}: done", as_json=common.as_json)


def subscribe(
    stream: str,
    *,
    credit: Annotated[int, Parameter(help="Unsettled deliveries to hold at most.")] = 100,
    ack: Annotated[bool, Parameter(help="Ack each delivery when it is printed.")] = False,
    max_: Annotated[int | None, Parameter(name="--max", help="Stop after this many.")] = None,
    lease_ms: Annotated[int | None, Parameter(help="Lease of a delivery.")] = None,
    common: Common = DEFAULTS,
) -> None:
    """Print deliveries of a stream as they arrive.

    Without --ack every delivery returns to the stream at the end, and at most --credit are printed.

    For example:

      penstock subscribe --stream jobs --max 1
      penstock subscribe jobs --ack --json | jq .deliver.payload
    """

    async def work(client: Client) -> None:
        count = 0
        async with client.subscribe(stream, credit=credit, lease_ms=lease_ms) as deliveries:
            async for delivery in deliveries:
                if common.as_json:
                    print_json(to_row(delivery))
                else:
                    envelope = delivery.envelope
                    print_line(f"{delivery.seq}  {delivery.id}  {envelope['type']}  {compact(envelope['payload'])}")
                if ack:
                    await delivery.ack()
                count += 1
                if max_ is not None and count >= max_:
                    break

    run(common, work, reconnect=True)
