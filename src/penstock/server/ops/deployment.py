"""What runs Penstock on a machine of its own: a unit for systemd, and a file to build a container from.

Both are printed, not installed. Times come from the server's own bounds, so that nobody is killed while it drains.
"""

from __future__ import annotations

from math import ceil
from string import Template

from penstock.core.limits import Limits
from penstock.server.ops import pipeline_supervisor
from penstock.server.relay import supervisor

MARGIN_S = 15
"""For a busy disk: the last commit, and a batch of the pipeline that is nearly done."""
STATE, CACHE = "/var/lib/penstock", "/var/cache/penstock"
PORT = 8787


def stop_seconds(drain_ms: int = Limits().drain_ms) -> int:
    """How long a server may take to stop in peace: its leases, then its relay, then its pipeline."""
    return ceil(drain_ms / 1000 + supervisor.STOP_S + pipeline_supervisor.STOP_S + MARGIN_S)


_UNIT = Template("""\
# Penstock as a service. Printed by `penstock print systemd`.
#   useradd --system --home-dir $cache --shell /usr/sbin/nologin $user
#   penstock print systemd > /etc/systemd/system/penstock.service
#   systemctl daemon-reload && systemctl enable --now penstock
[Unit]
Description=Penstock message broker
Documentation=man:systemd.service(5)
After=network-online.target
Wants=network-online.target

[Service]
# The server does not speak sd_notify; `exec` counts it as started when its program runs. Its doors are open when
# $data/run/endpoints.json is there.
Type=exec
User=$user
Group=$user
# With --json it prints where its doors are, and no link that signs in: this output is kept by others.
ExecStart=$program up --json --data $data$config
# Reads the config again, all of it or nothing.
ExecReload=/bin/kill -HUP $$MAINPID
# The server ends its own processes (pipeline, relay, sealing), so only it is told.
KillSignal=SIGTERM
KillMode=mixed
# limits.drain_ms ($drain_ms ms), then relay and pipeline; raise it together with drain_ms.
TimeoutStopSec=$stop_s
Restart=on-failure
RestartSec=2
# 2 is a config that cannot be used: starting again would not help.
RestartPreventExitStatus=2

StateDirectory=penstock
StateDirectoryMode=0700
CacheDirectory=penstock
# Where the pipeline keeps the script that starts its Java.
Environment=HOME=$cache
UMask=0077
LimitNOFILE=65536

# What the server needs is its two directories and the network.
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
CapabilityBoundingSet=
AmbientCapabilities=
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
# MemoryDenyWriteExecute is left out: Java compiles while it runs.

[Install]
WantedBy=multi-user.target
""")

_CONTAINER = Template("""\
# Penstock in a container. Printed by `penstock print container`; build it in a checkout:
#   penstock print container > Containerfile
#   podman build -t penstock -f Containerfile .
#   podman run -p $port:$port -v penstock:/data -e COURIER_TOKENS=a-long-secret penstock
# A server that other machines can reach serves nobody without a token, and does not start without one: give COURIER_TOKENS, or
# a config with `auth.tokens` (-v ./penstock.yaml:/etc/penstock.yaml:ro -e COURIER_CONFIG=/etc/penstock.yaml). The relay of token
# streams stays inside the container until `relay.curve` gives it keys.
FROM python:3.13-slim
# `--build-arg EXTRAS=[spark]` adds the pipeline; it brings a Java of its own.
ARG EXTRAS=""
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir ".$$EXTRAS" \\
 && useradd --uid 10001 --create-home --shell /usr/sbin/nologin penstock \\
 && install -d -o penstock -g penstock -m 0700 /data \\
 && rm -rf /src
WORKDIR /home/penstock
USER penstock
VOLUME /data
EXPOSE $port 9787
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \\
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:$port/health', timeout=2)"]
ENTRYPOINT ["penstock"]
CMD ["up", "--json", "--data", "/data", "--http", "0.0.0.0:$port", "--control", "0.0.0.0:9787"]
# Give it time to drain: podman stop --time $stop_s.
""")


def systemd_unit(
    program: str, *, data: str = STATE, config: str | None = None, user: str = "penstock"
) -> str:
    """A unit for a server on this machine."""
    return _UNIT.substitute(
        program=program,
        data=data,
        config="" if config is None else f" --config {config}",
        user=user,
        cache=CACHE,
        drain_ms=Limits().drain_ms,
        stop_s=stop_seconds(),
    )


def containerfile() -> str:
    """A file to build an image from, in a checkout."""
    return _CONTAINER.substitute(port=PORT, stop_s=stop_seconds())
