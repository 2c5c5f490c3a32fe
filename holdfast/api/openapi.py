"""The OpenAPI document, generated from the endpoints and the structs of the schema."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import fields

from holdfast.api.endpoints import Endpoint
from holdfast.api.schema.errors import ErrorEnvelope
from holdfast.api.schema.events import Event

_JSON = "application/json"
_REFERENCE = "#/components/schemas/{name}"
_REFUSALS = frozenset({400, 401, 403, 421})  # possible everywhere
_BODY_REFUSALS = frozenset({408, 413, 415})
_FORMER_NAMES = {  # names that earlier documents had, for clients generated from those
    "Approved": "ApprovalResponse",
    "Part": "ContentPart",
    "Started": "StartResponse",
    "Steered": "SteerResponse",
}


class AnyObject(msgspec.Struct):
    """An object whose fields are described in the documentation."""


def document(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        path = paths.setdefault(endpoint.documented_path, {})
        path[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": version},
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": _schemas(endpoints),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    named: set[type[msgspec.Struct]] = {ErrorEnvelope, Event, AnyObject}
    for endpoint in endpoints:
        named |= {kind for kind in (endpoint.request, endpoint.response) if kind is not None}
    types = sorted(named, key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    for kind in _with_parts(types):
        _require(components[kind.__name__], kind)
    return components | {old: _reference(new) for old, new in _FORMER_NAMES.items()}


def _with_parts(types: Sequence[type[msgspec.Struct]]) -> set[type[msgspec.Struct]]:
    """The structs, and those that their fields are made of."""
    found: set[type[msgspec.Struct]] = set()
    queue: list[object] = list(msgspec.inspect.multi_type_info(types))
    while queue:
        match queue.pop():
            case msgspec.inspect.StructType(cls=cls, fields=parts) if cls not in found:
                found.add(cls)
                queue += [part.type for part in parts]
            case msgspec.inspect.UnionType(types=choices):
                queue += choices
            case msgspec.inspect.VarTupleType(item_type=item):
                queue.append(item)
            case msgspec.inspect.Metadata(type=inner):
                queue.append(inner)
            case _:
                pass
    return found


def _require(component: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    """Require what is always sent: a struct that omits no defaults sends all that is not UNSET.

    The one exception is `Event`, of which each kind sends its own fields.
    """
    config = kind.__struct_config__
    if config.tag is not None:
        component["properties"][config.tag_field]["type"] = "string"
    if config.omit_defaults or kind is Event:
        return
    sent = [field.encode_name for field in fields(kind) if field.default is not msgspec.UNSET]
    component["required"] = [*([config.tag_field] if config.tag is not None else []), *sent]
    for schema in component["properties"].values():
        schema.pop("default", None)


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    parameters = [
        *(
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in endpoint.path_parameters
        ),
        *({"name": p.name, "in": p.place, "schema": p.schema} for p in endpoint.parameters),
    ]
    refusals = _REFUSALS | set(endpoint.errors)
    if parameters:
        refusals |= {404}
    if endpoint.request is not None:
        refusals |= _BODY_REFUSALS
    responses: dict[str, Any] = {str(endpoint.status): _success(endpoint)}
    if endpoint.empty:
        responses["204"] = {"description": endpoint.empty}
    refused = {"description": "Refused, and why", "content": _content(ErrorEnvelope)}
    responses |= {str(status): refused for status in sorted(refusals)}
    operation = {"summary": endpoint.summary, "parameters": parameters, "responses": responses}
    if endpoint.request is not None:
        operation["requestBody"] = {"required": True, "content": _content(endpoint.request)}
    return operation | ({"security": []} if endpoint.public else {})


def _success(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.stream:
        return {"description": endpoint.stream, "content": {"text/event-stream": {}}}
    return {"description": "OK", "content": _content(endpoint.response or AnyObject)}


def _content(of: type[msgspec.Struct]) -> dict[str, Any]:
    return {_JSON: {"schema": _reference(of.__name__)}}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=name)}
