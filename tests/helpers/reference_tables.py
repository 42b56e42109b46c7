"""The tables of parameters, settings, errors and metrics in the documents, made from the code.

    python -m tests.helpers.reference_tables

writes them between `<!-- table: NAME -->` and `<!-- end -->`."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from pydantic import BaseModel

from config import REPOSITORY, InferenceConfig, ModelSettings
from whosaid.errors import ClientError, EndpointError, ServerError
from whosaid.live.session import EmptyBuffer
from whosaid.server.errors import Kind
from whosaid.server.metrics import PROCESS, EngineMetrics, JobMetrics, Metrics
from whosaid.server.settings import ServerSettings

PLACE = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
DOCUMENTS = sorted((REPOSITORY / "docs").glob("*.md"))

Rows = Iterable[dict[str, str]]


def code(value: object) -> str:
    return f"`{value}`"


def sentence(text: str | None) -> str:
    """A description as a cell: one line without the full stop."""
    return " ".join((text or "").split()).removesuffix(".")


def values(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return ", ".join(values(each) for each in schema["anyOf"] if each["type"] != "null")
    if "enum" in schema:
        return ", ".join(map(code, schema["enum"]))
    kind = schema["type"]
    if kind == "boolean":
        return "true, false"
    if kind == "array":
        items = values(schema["items"])
        return f"list of {'objects' if items == 'object' else items}"
    if "minimum" in schema:
        return f"{schema['minimum']} to {schema['maximum']}"
    return {"string": "text"}.get(kind, kind)


def default(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return code(value) if isinstance(value, str) else str(value)


def parameters() -> Rows:
    """Parameters that differ only in their names share a row."""
    schemas = InferenceConfig.model_json_schema()["properties"]
    schemas["vad_parameters"]["type"] = "object"

    def told(name: str) -> tuple[str, str, str]:
        field = InferenceConfig.model_fields[name]
        return values(schemas[name]), default(field.default), sentence(field.description)

    for (accepted, unset, meaning), names in groupby(schemas, told):
        name = ", ".join(map(code, names))
        yield {"name": name, "values": accepted, "default": unset, "meaning": meaning}


def settings(model: type[BaseModel]) -> Iterator[dict[str, str]]:
    for name, field in model.model_fields.items():
        unset = "required" if field.is_required() else str(field.default)
        if field.default is None or field.default == frozenset():
            unset = "none"
        default = unset.lower() if isinstance(field.default, bool) else unset
        meaning = sentence(field.description)
        yield {"variable": code(name.upper()), "default": default, "meaning": meaning}


def endpoint_errors() -> Rows:
    for kind in (*ClientError.__subclasses__(), *ServerError.__subclasses__()):
        if kind.__module__ == EndpointError.__module__:
            when = sentence((kind.__doc__ or "").partition("\n\n")[0])
            yield {"status": str(kind.status), "code": code(kind.code), "when": when}


def refusals() -> Rows:
    for kind in Kind:
        if kind.name.isupper():
            yield {"status": str(kind.status), "code": code(kind.name), "when": kind.when}


def live_errors() -> Rows:
    yield {"code": code(EmptyBuffer.code), "when": sentence(EmptyBuffer.__doc__)}
    for kind in Kind:
        if kind.name.islower():
            yield {"code": code(kind.name), "when": kind.when}


def metrics() -> Rows:
    store = MagicMock(counts=lambda: ({}, 0))
    made = Metrics(EngineMetrics(MagicMock(), MagicMock()))
    made.on_disk.register(JobMetrics(store))
    build = [each for each in PROCESS.collect() if not each.name.startswith("process_")]
    suffixes = {"counter": "_total", "info": "_info"}
    for each in (*made.registry.collect(), *made.on_disk.collect(), *build):
        name = each.name + suffixes.get(each.type, "")
        yield {"metric": code(name), "meaning": each.documentation}


TABLES = {
    "parameters": parameters, "models": lambda: settings(ModelSettings),
    "server": lambda: settings(ServerSettings), "errors": endpoint_errors, "refusals": refusals,
    "live": live_errors, "metrics": metrics,
}  # fmt: skip


def filled(page: str) -> str:
    def table(place: re.Match[str]) -> str:
        rows = list(TABLES[place[1]]())
        cells = ([*rows[0]], ["---"] * len(rows[0]), *([*row.values()] for row in rows))
        lines = "\n".join(f"| {' | '.join(each)} |" for each in cells)
        return f"<!-- table: {place[1]} -->\n\n{lines}\n\n<!-- end -->"

    return PLACE.sub(table, page)


def write(path: Path) -> None:
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    for document in DOCUMENTS:
        write(document)
