"""What the user of a node may do in NATS, as a part of the servers' configuration: `penstock cluster create --print-permissions`.

A NATS wildcard stands for whole words, so the names of streams, which are one word, cannot be cut short: a node may use every stream of
its account. Give the cluster an account of its own.
"""

from __future__ import annotations

from penstock.journal.replicated.server_check import VARZ

CONNECTIONS = "$SYS.REQ.ACCOUNT.PING.CONNZ"
"""Lists the connections of the own account; every account may ask."""

_CONFIG = """\
# For nats-server.conf of each server. The password comes from its environment; nodes read it from a file:
#   echo "penstock:$PENSTOCK_NATS_PASSWORD" > penstock.creds && chmod 600 penstock.creds
jetstream {{ store_dir: "/var/lib/nats", sync_interval: always }}
accounts {{
  SYS {{
    users: [{{user: system, password: $SYSTEM_NATS_PASSWORD}}]
    # Nodes verify the servers with it.
    exports: [{{service: "{varz}", response_type: stream}}]
  }}
  PENSTOCK {{
    jetstream: enabled
    imports: [{{service: {{account: SYS, subject: "{varz}"}}}}]
    users: [
      {{
        user: penstock
        password: $PENSTOCK_NATS_PASSWORD
        permissions {{
          publish {{ allow: [
            {publish}
          ] }}
          subscribe {{ allow: [
            {subscribe}
          ] }}
        }}
      }}
    ]
  }}
}}
system_account: SYS"""


def published(cluster: str) -> list[str]:
    """Where a node may publish."""
    buckets = [f"KV_{cluster}-live", f"KV_{cluster}-config", f"OBJ_{cluster}-live-files"]
    return [
        f"pen.{cluster}.>",  # what nodes say to each other, and the logs of all shards and generations
        *(f"$KV.{cluster}-{bucket}.>" for bucket in ("live", "config")),
        f"$O.{cluster}-live-files.>",
        "$JS.API.INFO",
        *(f"$JS.API.STREAM.{request}.*" for request in ("CREATE", "UPDATE", "INFO", "PURGE", "MSG.GET")),
        *(f"$JS.API.CONSUMER.{request}.{bucket}.>" for bucket in buckets for request in ("CREATE", "INFO", "DELETE")),
        *(f"$JS.API.CONSUMER.CREATE.{bucket}" for bucket in buckets),
        "$JS.ACK.>",
        "$JS.FC.>",
        "_INBOX.>",
        VARZ,
        CONNECTIONS,
    ]


def subscribed(cluster: str) -> list[str]:
    """Where a node may subscribe."""
    return [f"pen.{cluster}.>", "_INBOX.>"]


def account_config(cluster: str) -> str:
    """The account of a cluster in the language of NATS configuration."""
    indent = "\n            "
    publish = indent.join(f'"{subject}"' for subject in published(cluster))
    subscribe = indent.join(f'"{subject}"' for subject in subscribed(cluster))
    return _CONFIG.format(varz=VARZ, publish=publish, subscribe=subscribe)
