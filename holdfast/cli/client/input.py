"""The input of a run: text, or text with pictures."""

from collections.abc import Sequence

from holdfast.api.schema.runs import ContentPart, ImageUrl, InputMessage
from holdfast.core.images import to_url
from holdfast.core.messages import Image


def input_of(text: str, images: Sequence[Image]) -> str | tuple[InputMessage, ...]:
    """The text and its pictures, as POST /v1/runs takes them."""
    if not images:
        return text
    parts = [ContentPart("text", text)] if text else []
    parts += [ContentPart("image_url", image_url=ImageUrl(to_url(image))) for image in images]
    return (InputMessage("user", tuple(parts)),)
