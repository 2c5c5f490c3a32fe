"""Images in messages: which are accepted, and their form as text.

The first bytes of an image decide its type; a different file name or media type is wrong. In
JSON, in our API as in those of model servers, an image is a `data:` URL. The API and the terminal
both use these checks, so that they accept the same images.
"""

import re
from base64 import b64decode, b64encode

from holdfast.core.messages import Image
from holdfast.errors import Refused

PICTURE_BYTES = 5 << 20
PICTURES = 8  # in one message

KINDS = "PNG, JPEG, GIF or WebP"
NOT_AN_IMAGE = f"is not a {KINDS} image"
NOT_FETCHED = "is a web address, which is not supported yet"

_HEADS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_DATA = re.compile(r"data:([A-Za-z0-9.+/-]{1,100});base64,", re.IGNORECASE)
_ALIASES = {"image/jpg": "image/jpeg"}


def media_type(data: bytes) -> str:
    """Return the media type of an image by its first bytes; empty if it is not accepted."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for head, kind in _HEADS.items() if data.startswith(head)), "")


def picture(data: bytes, name: str) -> Image:
    """Return the image in `data`, or refuse it; `name` is used in the message."""
    if not data:
        raise Refused("invalid_image", f"{name} is empty.")
    if len(data) > PICTURE_BYTES:
        raise Refused("image_too_large", f"{name} is over {PICTURE_BYTES >> 20} MiB.")
    if not (found := media_type(data)):
        raise Refused("invalid_image", f"{name} {NOT_AN_IMAGE}.")
    return Image(found, data)


def from_url(url: str, name: str) -> Image:
    """Return the image in a `data:` URL, or refuse it; `name` is used in the message."""
    if (head := _DATA.match(url)) is None:
        if url[:8].lower().startswith(("http://", "https://")):
            raise Refused("not_supported_yet", f"{name} {NOT_FETCHED}. Send it as a data: URL.")
        raise Refused("invalid_image", f"{name} must be a URL like data:image/png;base64,…")
    try:
        data = b64decode(url[head.end() :], validate=True)
    except ValueError:  # wrong characters or a wrong length
        raise Refused("invalid_image", f"{name} is not base64.") from None
    found, declared = picture(data, name), head[1].lower()
    if _ALIASES.get(declared, declared) != found.media_type:
        raise Refused(
            "invalid_image", f"{name} is declared as {declared}, but it is {found.media_type}."
        )
    return found


def check_count(count: int) -> None:
    """Refuse more images than a message may have."""
    if count > PICTURES:
        raise Refused("too_many_images", f"A message can have at most {PICTURES} images.")


def to_url(image: Image) -> str:
    """Return the image as a `data:` URL."""
    return f"data:{image.media_type};base64,{b64encode(image.data).decode()}"
