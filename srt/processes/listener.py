"""The listening socket, taken before any model loads, so that a busy port shows at once."""

from __future__ import annotations

import errno
import socket

from ..errors import ConfigError

_BACKLOG = 2048


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens on host and port (0: a free one).

    Connections made before the server answers wait in its backlog. Raises ConfigError.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(
            f"--host is {host!r}, which is no address of this machine: {error}"
        ) from None
    family, kind, protocol, _, where = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # A port whose last server has just ended may be taken; one that is listened on may not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(_explain(error, host, port)) from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the http:// address of listener, with the port it really has."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs more rights; choose one above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host is {host}, which is no address of this machine"
    return f"cannot listen on port {port} of {host}: {error.strerror}"
