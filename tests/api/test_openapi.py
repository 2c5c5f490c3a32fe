"""The OpenAPI document only grows: what a client was told once stays true."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.openapi import document
from holdfast.api.routes.public import ENDPOINTS

BEFORE = json.loads(Path(__file__).with_name("openapi_before.json").read_text())
NOW = json.loads(json.dumps(document(ENDPOINTS, "0")))
OPERATIONS = sorted((path, method) for path, item in BEFORE["paths"].items() for method in item)


def _resolved(schema: dict[str, Any], of: dict[str, Any]) -> dict[str, Any]:
    if (ref := schema.get("$ref")) is None:
        return schema
    return _resolved(of["components"]["schemas"][ref.rpartition("/")[2]], of)


def _losses(old: dict[str, Any], new: dict[str, Any], at: str) -> Iterator[str]:
    """What `old` promises and `new` does not."""
    old, new = _resolved(old, BEFORE), _resolved(new, NOW)
    for name, schema in old.get("properties", {}).items():
        if name not in new.get("properties", {}):
            yield f"{at}.{name} is gone"
        else:
            yield from _losses(schema, new["properties"][name], f"{at}.{name}")
    lost = set(old.get("required", ())) - set(new.get("required", ()))
    yield from (f"{at}.{name} is optional now" for name in lost)
    if old.get("type") != new.get("type") and "type" in old:
        yield f"{at} was {old['type']}, is {new.get('type')}"
    if "items" in old:
        yield from _losses(old["items"], new["items"], f"{at}[]")
    if len(old.get("anyOf", ())) != len(new.get("anyOf", ())):
        yield f"{at} has other alternatives"
    for one, other in zip(old.get("anyOf", ()), new.get("anyOf", ()), strict=False):
        yield from _losses(one, other, at)


@pytest.mark.parametrize("name", sorted(BEFORE["components"]["schemas"]))
def test_a_named_schema_keeps_its_name_and_what_it_had(name: str) -> None:
    reference = {"$ref": f"#/components/schemas/{name}"}
    assert list(_losses(reference, reference, name)) == []


def _contents(old: dict[str, Any], new: dict[str, Any], at: str) -> Iterator[str]:
    for kind, content in old.get("content", {}).items():
        if kind not in new.get("content", {}):
            yield f"{at} is not {kind} any more"
        elif "schema" in content:
            yield from _losses(content["schema"], new["content"][kind]["schema"], at)


def _sorted(parameter: dict[str, Any]) -> dict[str, Any]:
    schema = parameter["schema"]
    return parameter | {"schema": schema | {"enum": sorted(schema.get("enum", ()))}}


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_an_operation_keeps_what_it_had(path: str, method: str) -> None:
    old, new = BEFORE["paths"][path][method], NOW["paths"][path][method]
    assert old.get("security") == new.get("security")
    assert all(_sorted(p) in map(_sorted, new["parameters"]) for p in old["parameters"])
    assert old["responses"].keys() <= new["responses"].keys()
    lost = [
        loss
        for status, response in old["responses"].items()
        for loss in _contents(response, new["responses"][status], status)
    ]
    lost += _contents(old.get("requestBody", {}), new.get("requestBody", {}), "body")
    assert lost == []


def test_no_request_needs_more_than_before() -> None:
    needed = []
    for path, method in OPERATIONS:
        old, new = BEFORE["paths"][path][method], NOW["paths"][path][method]
        if "requestBody" in old:
            had = _resolved(old["requestBody"]["content"]["application/json"]["schema"], BEFORE)
            has = _resolved(new["requestBody"]["content"]["application/json"]["schema"], NOW)
            needed += [f"{method} {path} {n}" for n in set(has["required"]) - set(had["required"])]
    assert needed == []
