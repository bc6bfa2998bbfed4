"""The HTTP client for model endpoints: which transport, which limits.

httpx's own pool spends its time on bookkeeping when many calls are open; over aiohttp it has the same interface
without that. Measured on two cores against a model server on loopback (median of 4 rounds; milliseconds of CPU for a
request are the client's):

    |                        | httpx            | httpx, no limits | httpx-aiohttp    | aiohttp alone    |
    |------------------------|------------------|------------------|------------------|------------------|
    | 1 at a time, whole     | 0.70 ms, 0.65    | 0.67 ms, 0.63    | 0.54 ms, 0.40    | 0.33 ms, 0.18    |
    | 1 at a time, streamed  | 1.18 ms, 1.14    | 1.20 ms, 1.13    | 0.88 ms, 0.67    | 0.78 ms, 0.54    |
    | 32 at a time, whole    | 766/s, 1.24      | 794/s, 1.25      | 2902/s, 0.32     | 8285/s, 0.11     |
    | 32 at a time, streamed | 557/s, 1.77      | 564/s, 1.74      | 1954/s, 0.46     | 2110/s, 0.41     |

So the `proxy` extra brings aiohttp, with a transport of our own that halves that again (`ipy_sandbox/transport.py`);
without it everything works on plain httpx.
"""

from __future__ import annotations

import http.cookiejar
from urllib.request import getproxies

import httpx

from ..transport import KEEPALIVE, client_over, fast_transport

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def make_client(*, connect_timeout: float, idle_timeout: float) -> httpx.AsyncClient:
    """A client without limits, cookies or redirects, whose read timeout is the time between two pieces of an answer."""
    timeout = httpx.Timeout(idle_timeout, connect=connect_timeout, pool=None)
    # A model may think for long; connections are reused for as long as servers usually keep them.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE)
    # What runs on this machine is never behind the proxy that the environment names.
    direct = {f"all://{host}": httpx.AsyncHTTPTransport(limits=limits) for host in _LOOPBACK} if getproxies() else {}
    client = client_over(fast_transport(), timeout=timeout, mounts=direct, limits=limits)
    # One server's cookie must not travel with another user's request.
    client.cookies.jar.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
    return client
