"""Pictures that go with somebody's words: which are taken, and how they are written as text.

A picture is what its first bytes say it is; a name or a media type that says otherwise is wrong.
In JSON, here as with the models' servers, it is a `data:` URL. Whoever takes pictures in, a door
or a terminal, asks here, so that what one lets through the other does not refuse.
"""

import re
from base64 import b64decode, b64encode

from holdfast.core.messages import Image
from holdfast.errors import Refused

PICTURE_BYTES = 5 << 20
PICTURES = 8  # of one message

KINDS = "PNG, JPEG, GIF or WebP"

_HEADS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_DATA = re.compile(r"data:([A-Za-z0-9.+/-]{1,100});base64,", re.IGNORECASE)
_ALIASES = {"image/jpg": "image/jpeg"}


def media_type(data: bytes) -> str:
    """What a picture is, by its first bytes; empty: none that we take."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for head, kind in _HEADS.items() if data.startswith(head)), "")


def picture(data: bytes, name: str) -> Image:
    """The picture that `data` is; `name` is what a refusal calls it."""
    if not data:
        raise Refused("invalid_image", f"{name} is empty.")
    if len(data) > PICTURE_BYTES:
        raise Refused("image_too_large", f"{name} is over {PICTURE_BYTES >> 20} MiB.")
    if not (found := media_type(data)):
        raise Refused("invalid_image", f"{name} is no {KINDS} picture.")
    return Image(found, data)


def from_url(url: str, name: str) -> Image:
    """The picture that a `data:` URL holds; `name` is what a refusal calls it."""
    if (head := _DATA.match(url)) is None:
        if url[:8].lower().startswith(("http://", "https://")):
            raise Refused(
                "not_supported_yet",
                f"{name} is elsewhere, and fetching it is not built yet. Send it as a data: URL.",
            )
        raise Refused("invalid_image", f"{name} must be a URL like data:image/png;base64,…")
    try:
        data = b64decode(url[head.end() :], validate=True)
    except ValueError:  # characters that are none of it, or a length that cannot be
        raise Refused("invalid_image", f"{name} is not base64.") from None
    found, said = picture(data, name), head[1].lower()
    if _ALIASES.get(said, said) != found.media_type:
        raise Refused("invalid_image", f"{name} says it is {said} and is {found.media_type}.")
    return found


def check_count(count: int) -> None:
    """Refuse more than one message may have."""
    if count > PICTURES:
        raise Refused("too_many_images", f"A message takes {PICTURES} pictures at most.")


def to_url(image: Image) -> str:
    """The picture as text."""
    return f"data:{image.media_type};base64,{b64encode(image.data).decode()}"
