"""Telegram's HTML mode, by the rules and with the complaints of Telegram's own parser."""

import re
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


class Refusal(Exception):
    """What the Bot API answers instead of a result."""

    def __init__(self, status: int, description: str, **parameters: object) -> None:
        super().__init__(description)
        self.status = status
        self.body = {"ok": False, "error_code": status, "description": description}
        if parameters:
            self.body["parameters"] = parameters


def bad(description: str) -> Refusal:
    """A 400 in Telegram's words."""
    return Refusal(400, f"Bad Request: {description}")


def utf16(text: str) -> int:
    """Length in UTF-16 code units, as Telegram counts."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


_TYPES = {
    "b": "bold", "strong": "bold", "i": "italic", "em": "italic", "u": "underline",
    "ins": "underline", "s": "strikethrough", "strike": "strikethrough", "del": "strikethrough",
    "a": "text_link", "code": "code", "pre": "pre", "blockquote": "blockquote",
    "tg-spoiler": "spoiler", "span": "spoiler",
}  # fmt: skip
_ENTITY = re.compile(
    r"&(?:#(?P<dec>\d{1,8})|#x(?P<hex>[0-9a-fA-F]{1,8})|(?P<name>lt|gt|amp|quot));?"
)
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"'}


def parse_html(markup: str) -> tuple[str, list[Json]]:
    """Text and entities, by the rules and with the complaints of Telegram's own parser."""
    text = ""
    entities: list[Json] = []
    opened: list[tuple[str, Mapping[str, str], int]] = []
    at = 0
    while at < len(markup):
        here = f"at byte offset {len(markup[:at].encode())}"
        if markup[at] != "<":
            found = _ENTITY.match(markup, at)
            text += _decoded(found) if found else markup[at]
            at = found.end() if found else at + 1
        elif markup.startswith("</", at):
            if not opened:
                raise bad(f"can't parse entities: Unexpected end tag {here}")
            end = re.compile(r"</([^\s>]*)\s*>").match(markup, at)
            if end is None:
                raise bad(f"can't parse entities: Unclosed end tag {here}")
            tag, attributes, start = opened.pop()
            if end[1].lower() not in ("", tag):
                raise bad(
                    f"can't parse entities: Unmatched end tag {here}, "
                    f'expected "</{tag}>", found "</{end[1].lower()}>"'
                )
            entities += _entity(tag, attributes, start, text)
            at = end.end()
        else:
            tag, attributes, at = _start_tag(markup, at, here)
            opened.append((tag, attributes, utf16(text)))
    if opened:
        tag = opened[-1][0]
        raise bad(f"can't parse entities: Can't find end tag corresponding to start tag \"{tag}\"")
    entities.sort(
        key=lambda entity: (entity["offset"], -entity["length"], entity["type"] == "code")
    )
    return text, _languages(entities)


def _decoded(found: re.Match[str]) -> str:
    if name := found["name"]:
        return _NAMED[name]
    code = int(found["dec"]) if found["dec"] else int(found["hex"], 16)
    if code == 0 or code > 0x10FFFF:
        return found[0]
    if 0xD800 <= code < 0xE000:
        raise bad(
            "can't parse entities: Text contains invalid Unicode characters after decoding HTML "
            "entities, check for unmatched surrogate code units"
        )
    return chr(code)


def _start_tag(markup: str, at: int, here: str) -> tuple[str, Json, int]:
    name = re.compile(r"<([^\s>]*)(?=[\s>])").match(markup, at)
    if name is None:
        raise bad(f"can't parse entities: Unclosed start tag {here}")
    tag = name[1].lower()
    if tag not in _TYPES:
        raise bad(f'can\'t parse entities: Unsupported start tag "{tag}" {here}')
    attributes: Json = {}
    at = _blank(markup, name.end())
    while at < len(markup) and markup[at] != ">":
        attribute = markup[at : (at := _until(markup, at, r"[\s=>]"))].lower()
        if not attribute:
            raise bad(f'can\'t parse entities: Empty attribute name in the tag "{tag}" {here}')
        at = _blank(markup, at)
        attributes[attribute] = ""
        if markup[at : at + 1] == "=":
            at = _blank(markup, at + 1)
            if at < len(markup):
                attributes[attribute], at = _value(markup, at, here)
            at = _blank(markup, at)
    if at == len(markup):
        raise bad(f'can\'t parse entities: Unclosed start tag "{tag}" {here}')
    if tag == "span" and attributes.get("class") != "tg-spoiler":
        raise bad(f'can\'t parse entities: Tag "span" must have class "tg-spoiler" {here}')
    return tag, attributes, at + 1


def _value(markup: str, at: int, here: str) -> tuple[str, int]:
    if (quote := markup[at]) in "\"'":
        end = markup.find(quote, at + 1)
        if end < 0:
            raise bad(f"can't parse entities: Unclosed start tag {here}")
        return _ENTITY.sub(_decoded, markup[at + 1 : end]), end + 1
    end = _until(markup, at, r"[^a-zA-Z0-9.\-]")
    if end < len(markup) and not (markup[end].isspace() or markup[end] == ">"):
        offset = len(markup[:at].encode())
        raise bad(f"can't parse entities: Unexpected end of name token at byte offset {offset}")
    return markup[at:end], end


def _blank(markup: str, at: int) -> int:
    return _until(markup, at, r"\S")


def _until(markup: str, at: int, pattern: str) -> int:
    found = re.compile(pattern).search(markup, at)
    return found.start() if found else len(markup)


def _entity(tag: str, attributes: Mapping[str, str], start: int, text: str) -> list[Json]:
    length = utf16(text) - start
    entity: Json = {"type": _TYPES[tag], "offset": start, "length": length}
    if tag == "a":
        url = attributes.get("href", "")
        if not re.match(r"(?:https?|tg|ton)://[^\s/]", url):
            return []
        entity["url"] = url
    if tag == "code" and (language := attributes.get("class", "")).startswith("language-"):
        entity["language"] = language.removeprefix("language-")
    return [entity] if length else []


def _languages(entities: list[Json]) -> list[Json]:
    """A code with a language that fills a pre is that pre's language; else it has none."""
    spans = {(e["offset"], e["length"]): e for e in entities if e["type"] == "pre"}
    kept = []
    for entity in entities:
        pre = spans.get((entity["offset"], entity["length"]))
        language = entity.pop("language", "") if entity["type"] == "code" else ""
        if pre is not None and language:
            pre["language"] = language
        else:
            kept.append(entity)
    return kept
