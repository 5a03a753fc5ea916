"""The relay of token streams as a service inside a program of your own.

`penstock up` runs the same service in a separate process. This module is the stable path to it; it defines nothing.
"""

# size: a public path to names that are defined elsewhere

from __future__ import annotations

from penstock.dialects.streamservice.signatures import Registrar, TrustStore
from penstock.server.relay.service import TERMINATE, StreamService
from penstock.server.relay.subscriptions import RelaySettings

__all__ = ["TERMINATE", "Registrar", "RelaySettings", "StreamService", "TrustStore"]
