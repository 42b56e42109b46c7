"""`GET /docs`: every route is on the page, and nothing that it shows comes from elsewhere."""

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

from config import InferenceConfig
from tests.helpers.asgi import call
from tests.helpers.live_stand_ins import Drivers, live
from whosaid.server.docs_page import render


class Page(HTMLParser):
    """Collects what a browser would load, run or follow."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str | None] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("href", "src")]


async def test_docs_show_all_routes_without_key_or_scripts():
    app = live(Drivers(), api_key="a key of this test")
    described, page = app.app.openapi(), await call(app, "GET", "/docs")
    head, description = await call(app, "HEAD", "/docs"), await call(app, "GET", "/openapi.json")
    assert (page.status, head.status, description.status) == (200, 200, 200)
    assert description.json == described
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    text = page.body.decode()
    found = Page(text)
    foreign = {"script", "img", "iframe", "form"}
    assert (found.links, found.tags & foreign) == (["openapi.json"], set())
    style = re.search(r"<style>(.*)</style>", text)[1]
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}';" in page.headers["content-security-policy"]
    for path, methods in described["paths"].items():
        for method in methods:
            assert f"<code>{method.upper()} {path}</code>" in text
    for parameter in InferenceConfig.model_fields:
        assert f"parameters.{parameter} (optional)" in text


def test_descriptions_are_escaped():
    operation = {"summary": "a & b", "responses": {"200": {"description": "<"}}}
    description = {"info": {"title": "<b>"}, "paths": {"/<i>": {"get": operation}}}
    assert Page(render(description)).tags.isdisjoint({"b", "i"})
