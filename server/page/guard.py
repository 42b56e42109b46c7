"""What of Gradio can be reached: the routes that the page uses, with bounded bodies.

The one decision: a list of what is allowed. Gradio brings some fifty routes (a proxy, an API,
profiling, uploads of other kinds), and the next version may bring more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException
from starlette.responses import PlainTextResponse

from server.page.upload_room import UploadRoom

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

API = "/gradio_api"
UPLOAD = f"{API}/upload"
ROUTES = re.compile(
    r"/|/(config|theme\.css|robots\.txt|favicon\.ico|login|logout|manifest\.json)/?"
    r"|/(static|assets|svelte)/.*"
    rf"|{API}/(upload|upload_progress|queue/join|queue/data|cancel|reset|startup-events|user"
    r"|login_check|token|app_id|info|heartbeat/\w+)/?"
    # Only files: Gradio fetches what follows `file=` where it is a URL.
    rf"|{API}/file=/.*"
)
MAX_EVENT_BYTES = 2**20  # the parameters of one event; a prompt has 4,000 characters at most
MULTIPART_BYTES = 2**16  # boundaries and headers around an uploaded file
NO_ROOM = "BUSY: the recordings of the last hours leave no room for this one"


class Guard:
    """Answers 404 for every other route, 413 for bodies beyond what a route takes, and 429 for
    uploads that have no `room`.
    """

    def __init__(self, app: ASGIApp, max_upload_bytes: int, room: UploadRoom) -> None:
        self.app, self.room = app, room
        self.max_upload_bytes = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        if scope["type"] != "http" or not ROUTES.fullmatch(path):
            await PlainTextResponse("Not Found", 404)(scope, receive, send)
            return
        uploads = path.rstrip("/") == UPLOAD
        most = self.max_upload_bytes + MULTIPART_BYTES if uploads else MAX_EVENT_BYTES
        announced = Headers(scope=scope).get("content-length", str(most) if uploads else "0")
        if not announced.isdecimal() or int(announced) > most:
            response = PlainTextResponse("Content Too Large", 413, {"Connection": "close"})
            await response(scope, receive, send)
        elif uploads:
            await self._upload(scope, receive, send, int(announced))
        else:
            await self.app(scope, _counting(receive, most), send)

    async def _upload(self, scope: Scope, receive: Receive, send: Send, size: int) -> None:
        async with self.room.take(size) as has_room:
            if has_room:
                await self.app(scope, _complete(_counting(receive, size)), send)
                return
        response = PlainTextResponse(NO_ROOM, 429, {"X-Error-Message": NO_ROOM})
        await response(scope, receive, send)


def _counting(receive: Receive, most: int) -> Receive:
    """`receive` that ends where more than `most` bytes come, as if the client had gone."""
    received = 0

    async def count() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        return message if received <= most else {"type": "http.disconnect"}

    return count


def _complete(receive: Receive) -> Receive:
    """`receive` that raises MultiPartException where an upload breaks off. After that Gradio
    deletes what has come, and after no other exception.
    """

    async def check() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise MultiPartException("broken off, or more than the maximum allowed size")
        return message

    return check
