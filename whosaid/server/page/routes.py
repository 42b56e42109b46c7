"""Serves the page's files with headers that restrict what the page may do in a browser."""

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from fastapi.staticfiles import StaticFiles

PATH = "/app"
STATIC = Path(__file__).resolve().parent / "static"
# Scripts and styles are files of this page, sound is the user's own file, and the page connects to
# this server alone. Trusted types forbid scripts to parse text as HTML.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=(), display-capture=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Browsers revalidate every file, so that an old page never meets a new server.
    "Cache-Control": "no-cache",
}


def router() -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    files = StaticFiles(directory=STATIC, html=True)

    @routes.api_route(PATH, methods=["GET", "HEAD"])
    async def with_slash() -> RedirectResponse:
        return RedirectResponse("app/")

    @routes.api_route(PATH + "/{name:path}", methods=["GET", "HEAD"])
    async def send(name: str, request: Request) -> Response:
        response = await files.get_response(name, request.scope)
        response.headers.update(HEADERS)
        return response

    return routes
