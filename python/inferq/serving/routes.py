"""HTTP routes of the OpenAI API, as in vLLM."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any, cast
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from inferq.checks import shown
from inferq.serving.connections import Handler
from inferq.serving.requests import ApiError, parsed
from inferq.serving.service import Service

_BODY_S = 60.0
"""Seconds within which a body must arrive."""


def _json(data: Any, status: int = 200) -> web.Response:
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return web.json_response(data, status=status, headers=headers)


@web.middleware
async def _as_api_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert exceptions to error responses of the API."""
    try:
        return await handler(request)
    except ApiError as error:
        response = _json(error.body(), error.status)
        if request.content.exception() is not None:
            response.force_close()  # the start of the next request is unknown
        return response
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _json(ApiError(error.status, error.reason).body(), error.status)
    except ConnectionError:
        raise asyncio.CancelledError from None  # the client disconnected
    except Exception:
        traceback.print_exc()
        return _json(ApiError(500, "internal server error", "internal_error").body(), 500)


@web.middleware
async def _from_this_machine(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests that a web page can make the browser of a developer send."""
    host = request.headers.get("Host", "")
    if _name(host) not in ("127.0.0.1", "localhost", "::1"):
        raise ApiError(403, f"the host must be 127.0.0.1 or localhost, got {shown(host)}", "forbidden")
    origin = request.headers.get("Origin")
    if origin is not None and origin != f"http://{host}":
        raise ApiError(403, f"requests from the origin {shown(origin)} are refused", "forbidden")
    if request.method == "POST" and request.content_type != "application/json":
        raise ApiError(
            415, f"Content-Type must be application/json, got {shown(request.content_type)}", "invalid_type"
        )
    return await handler(request)


def _name(host: str) -> str | None:
    """The host name without the port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


async def _body(request: web.Request) -> bytes:
    try:
        return await asyncio.wait_for(request.read(), _BODY_S)
    except asyncio.TimeoutError:
        raise ApiError(408, f"the body did not arrive within {_BODY_S:g} s") from None
    except (web.RequestPayloadError, HttpProcessingError) as error:
        reason = " ".join(str(error).split())
        raise ApiError(400, f"the body cannot be read: {reason}") from None
    except web.HTTPRequestEntityTooLarge:
        raise ApiError(413, f"the body exceeds {request.client_max_size} bytes") from None


def application(service: Service) -> web.Application:
    """The routes for clients."""

    async def chat(request: web.Request) -> web.StreamResponse:
        return await answer(request, is_chat=True)

    async def completions(request: web.Request) -> web.StreamResponse:
        return await answer(request, is_chat=False)

    async def answer(request: web.Request, is_chat: bool) -> web.StreamResponse:
        body = await _body(request)
        received_ns = service.fleet.clock.now_ns()
        session = request.headers.get("X-Session-ID")
        prepared = await service.in_turn(body, lambda body: service.read(parsed(body), is_chat, session))
        exchange, requests = service.begin(prepared, received_ns)
        try:
            if not exchange.is_stream:
                await exchange.over
                if exchange.error is not None:
                    raise exchange.error
                return _json(exchange.whole())
            response = web.StreamResponse(
                headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
            )
            response.enable_chunked_encoding()
            await response.prepare(request)
            transport = cast("asyncio.WriteTransport | None", request.transport)
            if transport is None:
                raise asyncio.CancelledError
            exchange.begin(transport)
            await exchange.over
            await response.write_eof()
            return response
        finally:
            # Requests of a disconnected client, or of a cut connection.
            for request_id in requests:
                service.fleet.cancel(request_id)

    async def models(_: web.Request) -> web.StreamResponse:
        return _json(service.models())

    async def health(_: web.Request) -> web.StreamResponse:
        is_well = service.fleet.error is None and not service.is_draining
        return web.Response(status=200 if is_well else 503)

    async def metrics(_: web.Request) -> web.StreamResponse:
        text = service.metrics.text(service.fleet.live.replicas())
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def tokenize(request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        return _json(await service.in_turn(body, lambda body: service.tokenized(parsed(body))))

    app = web.Application(middlewares=[_as_api_errors], client_max_size=service.most_bytes)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/completions", completions)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)
    app.router.add_post("/tokenize", tokenize)
    return app


def administration(service: Service) -> web.Application:
    """The routes for fault injection."""

    async def show(_: web.Request) -> web.StreamResponse:
        return _json(service.current_faults())

    async def change(request: web.Request) -> web.StreamResponse:
        service.change_faults(parsed(await _body(request)))
        return _json(service.current_faults())

    app = web.Application(middlewares=[_as_api_errors, _from_this_machine])
    app.router.add_get("/faults", show)
    app.router.add_post("/faults", change)
    return app
