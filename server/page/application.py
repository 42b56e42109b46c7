"""Mounts the page on the server's application.

The one decision: Gradio's defaults are for demos on a trusted machine, so each is set here to what
a server wants: no analytics, no run history, no traces of exceptions, uploads as large as the audio
may be, and where the server has an API key, Gradio's login in front of everything, whose password
that key is.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import RedirectResponse
from starlette.routing import Mount

from config import ServerSettings, prepare_page
from server.admission import Admission
from server.service import Service

PATH = "/app"
FOLDER = Path(__file__).resolve().parent
LOGIN = "Any user name will do. The password is this server's API key."


def mount(
    app: FastAPI, service: Service, admission: Admission, settings: ServerSettings
) -> FastAPI:
    """`app` with the page at `/app/`. It wraps the app's lifespan, which has to run.

    Gradio makes locks while it is mounted, and where no event loop runs it makes a loop for each,
    which nobody closes. So one runs here; the locks are bound to a loop when they are used.
    """
    prepare_page()

    async def in_a_loop() -> FastAPI:
        return _mount(app, service, admission, settings)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(in_a_loop())
    return _mount(app, service, admission, settings)


def _mount(
    app: FastAPI, service: Service, admission: Admission, settings: ServerSettings
) -> FastAPI:
    import gradio as gr
    from gradio.utils import get_upload_folder

    from server.page.guard import Guard
    from server.page.layout import Page
    from server.page.upload_room import UploadRoom

    @app.get(PATH, include_in_schema=False)
    async def with_slash() -> RedirectResponse:
        return RedirectResponse("app/")

    page = Page(service, admission, settings)
    max_bytes = service.handler.limits.max_bytes
    mounted: FastAPI = gr.mount_gradio_app(
        app,
        page.blocks,
        path=PATH,
        auth=_login(settings),
        auth_message=LOGIN,
        max_file_size=max_bytes,
        allowed_paths=[],
        show_error=False,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        enable_monitoring=False,
        mcp_server=False,
        theme=gr.themes.Default(
            primary_hue="teal", font=["system-ui", "sans-serif"], font_mono=["monospace"]
        ),
        css=(FOLDER / "page.css").read_text(encoding="utf-8"),
        js=(FOLDER / "page.js").read_text(encoding="utf-8"),
    )
    (route,) = (each for each in mounted.routes if isinstance(each, Mount) and each.path == PATH)
    room = UploadRoom(Path(get_upload_folder()), settings.max_queue_bytes)
    route.app = Guard(route.app, max_bytes, room)
    return mounted


def _login(settings: ServerSettings) -> Callable[[str, str], bool] | None:
    """Gradio's check of a login, in constant time; None where everybody may come in."""
    if settings.api_key is None:
        return None
    key = settings.api_key.get_secret_value().encode()

    def is_right(_: str, password: str) -> bool:
        return hmac.compare_digest(password.encode(), key)

    return is_right
