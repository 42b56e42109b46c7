"""Hands out the page's files, and tells the browser what they may do.

The files are read once, when the server starts. A request names one of them or gets 404: no path is
ever made of what a client sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

PATH = "/app"
STATIC = Path(__file__).resolve().parent / "static"
FIRST = "index.html"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Scripts and styles are files of this page, sound is what the person chose, and the page talks to
# this server alone. Trusted types let no script make HTML of text.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "media-src blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=(), display-capture=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Asked for each time, so that a new server is never met by an old page; ETag saves the bytes.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is sent."""

    body: bytes
    media_type: str

    @property
    def headers(self) -> dict[str, str]:
        """All headers but those of its length and type."""
        return {**HEADERS, "ETag": f'"{sha256(self.body).hexdigest()[:32]}"'}


def read_files(folder: Path = STATIC) -> Mapping[str, PageFile]:
    """The page's files by name. What else lies in the folder is left out."""
    return {
        path.name: PageFile(path.read_bytes(), MEDIA_TYPES[path.suffix])
        for path in sorted(folder.iterdir())
        if path.suffix in MEDIA_TYPES
    }


def router() -> APIRouter:
    """`/app/` and the files beside it."""
    routes, files = APIRouter(include_in_schema=False), read_files()

    @routes.head(PATH)
    @routes.get(PATH)
    async def with_slash() -> RedirectResponse:
        return RedirectResponse("app/")

    @routes.head(PATH + "/{name:path}")
    @routes.get(PATH + "/{name:path}")
    async def send(name: str, request: Request) -> Response:
        file = files.get(name or FIRST)
        if file is None:
            raise HTTPException(404)
        headers = file.headers
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers, media_type=file.media_type)

    return routes
