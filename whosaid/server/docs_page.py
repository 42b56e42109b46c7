"""`GET /docs`: renders the OpenAPI description as a page.

FastAPI's own page loads scripts from another site, which the server's content policy forbids and a
machine without internet cannot reach.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from hashlib import sha256
from html import escape
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

Schema = dict[str, Any]

STYLE = (
    ":root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }"
    " body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }"
    " h2 { margin-top: 2.5rem; font-size: 1.1rem } summary { cursor: pointer }"
    " table { border-collapse: collapse; width: 100% }"
    " td { border-top: 1px solid #8884; padding: .2rem .8rem .2rem 0; vertical-align: top }"
    " code { font-size: .9em; overflow-wrap: anywhere }"
)
STYLE_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)


def router() -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    @routes.head("/docs")
    @routes.get("/docs")
    async def docs(request: Request) -> HTMLResponse:
        page = render(request.app.openapi())
        return HTMLResponse(page, headers={"Content-Security-Policy": POLICY})

    return routes


def render(description: Schema) -> str:
    title = escape(description["info"]["title"])
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}: API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f'<h1>{title}</h1><p>For programs: <a href="openapi.json">openapi.json</a>.'
    ]
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            parts += _operation(f"{method.upper()} {path}", operation)
    return "\n".join(parts)


def _operation(name: str, operation: Schema) -> Iterator[str]:
    yield f"<h2><code>{escape(name)}</code> {escape(operation['summary'])}</h2>"
    yield f"<p>{escape(operation.get('description', ''))}"
    for given in operation.get("parameters", ()):
        text = given.get("description", "")
        rows = [(f"{given['name']} ({given['in']})", *_about(given["schema"], text))]
        yield _table(rows)
    for kind, body in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<details><summary>Body: <code>{escape(kind)}</code></summary>"
        yield f"{_table(_fields(body.get('schema', {})))}</details>"
    statuses = [
        (f"{status} {HTTPStatus(int(status)).phrase}", answer["description"])
        for status, answer in operation["responses"].items()
    ]
    yield f"<details><summary>Answers</summary>{_table(statuses)}</details>"


def _fields(schema: Schema, within: str = "") -> Iterator[tuple[str, ...]]:
    """Yield name, type and description of each field of an object, nested fields included."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        star = "" if name in required else " (optional)"
        yield f"{within}{name}{star}", *_about(field, field.get("description", ""))
        for choice in (field, *field.get("anyOf", ())):
            yield from _fields(choice, f"{within}{name}.")


def _about(schema: Schema, text: str) -> tuple[str, str]:
    """Return a parameter's type with its default, and the first paragraph of `text`."""
    default = ""
    if schema.get("default") is not None:
        default = f"; default {json.dumps(schema['default'])}"
    return _type(schema) + default, text.partition("\n\n")[0]


def _type(schema: Schema) -> str:
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_type(each) for each in choices)
    if "enum" in schema:
        return " or ".join(map(json.dumps, schema["enum"]))
    name = str(schema.get("format") or schema.get("type", "any"))
    if name == "array":
        return f"array of {_type(schema.get('items', {}))}"
    bounds = [
        f"{sign} {schema[key]}"
        for sign, key in (("≥", "minimum"), ("≤", "maximum"))
        if key in schema
    ]
    return " ".join([name, *bounds])


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    cells = (
        f"<tr><td><code>{escape(first)}</code>" + "".join(f"<td>{escape(text)}" for text in rest)
        for first, *rest in rows
    )
    return f"<table>{''.join(cells)}</table>"
