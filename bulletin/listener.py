"""The socket that an HTTP service of this package listens on."""

from __future__ import annotations

import socket


def listen(host: str, port: int) -> socket.socket:
    """Bind an address, port 0 for any that is free.  Raises OSError for one that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    # Connections inherit it.  asyncio does not set it on sockets that others made, and then the
    # second packet of each small answer waits 40 ms for the client to acknowledge the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
