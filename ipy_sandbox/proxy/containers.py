"""`GET /v1/containers/{container}/files/{file}/content`: the files that an answer cites."""

from __future__ import annotations

import posixpath
from urllib.parse import quote

from starlette.responses import Response

from .disconnect import unless_gone
from .exchange import Exchange
from .service import Proxy


async def get_file_content(proxy: Proxy, exchange: Exchange) -> None:
    """The bytes of a file in the caller's own container."""
    service = proxy.service
    caller = exchange.identify(service.keyring)
    container, file = exchange.path_params["container_id"], exchange.path_params["file_id"]
    limit = service.config.general_settings.global_max_parallel_requests
    with proxy.gate.enter(caller, limit), service.backend.in_use():
        reading = service.backend.interpreter.container_file(caller.identity, container, file)
        path, data = await unless_gone(exchange.receive, reading)
    # Never shown as a page of this address: the code that wrote it is not trusted.
    disposition = f"attachment; filename*=UTF-8''{quote(posixpath.basename(path))}"
    headers = {"content-disposition": disposition, "x-content-type-options": "nosniff"}
    await exchange.respond(Response(data, headers=headers, media_type="application/octet-stream"))
