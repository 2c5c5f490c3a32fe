"""JSON Schema as Gemini takes it: a subset of OpenAPI 3.0, in which an unknown field is an error.

References are replaced by what they refer to, `null` becomes `nullable`, and what the server does
not know is left out: the tool checks its arguments itself. Nothing here does I/O.
"""

from collections.abc import Mapping
from typing import Any

_KEPT = {
    "type",
    "title",
    "description",
    "default",
    "nullable",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
    "pattern",
}
_FORMATS = {"date-time", "enum", "float", "double", "int32", "int64"}
_ANY = {"type": "string"}  # for what has no type: text says most


def subset(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` in the form that the server takes."""
    definitions = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    return _node(schema, definitions, ())


def _node(
    schema: object, definitions: Mapping[str, Any], within: tuple[str, ...]
) -> dict[str, Any]:
    """Translate one schema. `within`: the references that led to it."""
    if not isinstance(schema, Mapping):
        return dict(_ANY)  # true or false: anything, or nothing
    if (reference := schema.get("$ref")) is not None:
        name = str(reference).rpartition("/")[2]
        if name in within or not isinstance(definitions.get(name), Mapping):
            return {"type": "object"}  # it contains itself, or is not there
        within = (*within, name)
        schema = {**definitions[name], **{k: v for k, v in schema.items() if k != "$ref"}}
    for part in schema.get("allOf", ()):
        schema = {**_node(part, definitions, within), **schema}
    found = {name: value for name, value in schema.items() if name in _KEPT}
    if schema.get("format") in _FORMATS:
        found["format"] = schema["format"]
    kinds = schema.get("type")
    if isinstance(kinds, list):
        found |= _one_type(kinds)
    _add_choices(found, schema, definitions, within)
    _add_values(found, schema)
    if found.get("type") == "object":
        _add_properties(found, schema, definitions, within)
    if found.get("type") == "array":
        found["items"] = _node(schema.get("items"), definitions, within)
    return found if "type" in found or "anyOf" in found else {**_ANY, **found}


def _one_type(kinds: list[str]) -> dict[str, Any]:
    """Of several types, the first that is not null."""
    named = [kind for kind in kinds if kind != "null"]
    nullable = {"nullable": True} if len(named) < len(kinds) else {}
    return {"type": named[0] if named else "string", **nullable}


def _add_choices(
    found: dict[str, Any],
    schema: Mapping[str, Any],
    definitions: Mapping[str, Any],
    within: tuple[str, ...],
) -> None:
    given = schema.get("anyOf") or schema.get("oneOf") or []
    choices = [choice for choice in given if choice != {"type": "null"}]
    if len(choices) < len(given):
        found["nullable"] = True
    if len(choices) == 1:
        only = _node(choices[0], definitions, within)
        found.update({name: value for name, value in only.items() if name not in found})
    elif choices:
        found.pop("type", None)
        found["anyOf"] = [_node(choice, definitions, within) for choice in choices]


def _add_values(found: dict[str, Any], schema: Mapping[str, Any]) -> None:
    """Add the values that are allowed, if they are texts: the server takes no others."""
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    texts = [value for value in values if isinstance(value, str)]
    if not texts or len(texts) < len([value for value in values if value is not None]):
        return
    found.setdefault("type", "string")
    if found["type"] == "string":
        found["enum"] = texts


def _add_properties(
    found: dict[str, Any],
    schema: Mapping[str, Any],
    definitions: Mapping[str, Any],
    within: tuple[str, ...],
) -> None:
    given = schema.get("properties") or {}
    if not given:
        return  # an empty object is refused, its absence is not
    found["properties"] = {name: _node(value, definitions, within) for name, value in given.items()}
    if required := [name for name in schema.get("required", ()) if name in given]:
        found["required"] = required
