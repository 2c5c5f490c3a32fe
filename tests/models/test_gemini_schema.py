"""JSON Schema becomes the subset that Gemini takes."""

from typing import Any

import pytest

from holdfast.models.gemini_schema import subset

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({**STRING, "$schema": "x", "examples": ["a"], "minLength": 1}, {**STRING, "minLength": 1}),
        ({"type": ["integer", "null"], "exclusiveMinimum": 0}, {**INTEGER, "nullable": True}),
        ({"type": "null"}, NULL),
        ({"anyOf": [STRING, NULL], "default": None}, {**STRING, "nullable": True, "default": None}),
        ({"oneOf": [STRING, INTEGER]}, {"anyOf": [STRING, INTEGER]}),
        ({"anyOf": [STRING, INTEGER, NULL]}, {"anyOf": [STRING, INTEGER], "nullable": True}),
        ({**INTEGER, "enum": [1, 2]}, INTEGER),
        ({"enum": ["a", "b", None]}, {**STRING, "enum": ["a", "b"]}),
        ({"const": "a"}, {**STRING, "enum": ["a"]}),
        ({**STRING, "format": "uuid"}, STRING),
        ({**STRING, "format": "date-time"}, {**STRING, "format": "date-time"}),
        ({"type": "array"}, {"type": "array", "items": STRING}),
        (
            {"type": "array", "items": INTEGER, "uniqueItems": True},
            {"type": "array", "items": INTEGER},
        ),
        ({"type": "object", "additionalProperties": STRING}, {"type": "object"}),
        ({}, STRING),
        (True, STRING),
        ({"type": "array", "items": False}, {"type": "array", "items": STRING}),
        ({"anyOf": [True, INTEGER]}, {"anyOf": [STRING, INTEGER]}),
        ({"description": "anything"}, {**STRING, "description": "anything"}),
        ({"allOf": [INTEGER], "title": "n"}, {**INTEGER, "title": "n"}),
    ],
)
def test_what_the_server_does_not_know_is_left_out(given: Any, found: dict[str, Any]) -> None:
    assert subset({"type": "object", "properties": {"x": given}})["properties"] == {"x": found}


def test_references_are_replaced_even_if_they_lead_back() -> None:
    schema = {
        "$ref": "#/$defs/Tree",
        "$defs": {
            "Tree": {
                "type": "object",
                "properties": {
                    "name": {"$ref": "#/$defs/Name", "description": "its name"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
                    "lost": {"$ref": "#/$defs/Nowhere"},
                },
                "required": ["name", "other"],
            },
            "Name": {"type": "string", "maxLength": 9},
        },
    }
    assert subset(schema) == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 9, "description": "its name"},
            "children": {"type": "array", "items": {"type": "object"}},
            "lost": {"type": "object"},
        },
        "required": ["name"],
    }
