"""Which pictures are taken: what their bytes say they are, of a size and a number that is borne."""

from base64 import b64encode

import msgspec
import pytest

from holdfast.core.images import (
    NOT_AN_IMAGE,
    NOT_FETCHED,
    PICTURE_BYTES,
    PICTURES,
    check_count,
    from_url,
    media_type,
    picture,
    to_url,
)
from holdfast.core.inbox import InputAdmitted
from holdfast.core.messages import Image, User
from holdfast.core.types import InputId, RunId
from holdfast.errors import Refused

PNG = b"\x89PNG\r\n\x1a\n and more"
KINDS = {
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0 and more",
    "image/gif": b"GIF89a and more",
    "image/webp": b"RIFF\x10\x00\x00\x00WEBPVP8 ",
}


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{b64encode(data).decode()}"


@pytest.mark.parametrize(("kind", "data"), [*KINDS.items(), ("image/gif", b"GIF87a")])
def test_a_picture_is_what_its_first_bytes_say(kind: str, data: bytes) -> None:
    assert media_type(data) == kind
    assert picture(data, "it") == Image(kind, data)
    assert from_url(url(data, kind), "it") == Image(kind, data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_as_text_is_the_same_picture(kind: str) -> None:
    image = Image(kind, KINDS[kind])
    assert from_url(to_url(image), "it") == image


@pytest.mark.parametrize(
    "data", [b"\x89PNG", b"GIF88a", b"RIFF\x10\x00\x00\x00WAVE", b"<svg/>", b"%PDF-1.7", b"BM"]
)
def test_other_data_is_refused_as_an_image(data: bytes) -> None:
    assert media_type(data) == ""
    with pytest.raises(Refused, match=f"^it {NOT_AN_IMAGE}") as refused:
        picture(data, "it")
    assert refused.value.code == "invalid_image"


def test_a_picture_has_a_size_that_is_borne() -> None:
    whole = PNG + bytes(PICTURE_BYTES - len(PNG))
    assert picture(whole, "it").data == whole
    with pytest.raises(Refused, match="^it is over 5 MiB") as refused:
        from_url(url(whole + b"."), "it")
    assert refused.value.code == "image_too_large"
    with pytest.raises(Refused, match="^it is empty"):
        picture(b"", "it")


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        ("https://example.org/a.png", "not_supported_yet", f"it {NOT_FETCHED}"),
        ("HTTP://example.org/a.png", "not_supported_yet", f"it {NOT_FETCHED}"),
        ("", "invalid_image", "it must be a URL like data:"),
        ("a.png", "invalid_image", "it must be a URL like data:"),
        ("data:image/png,abc", "invalid_image", "it must be a URL like data:"),
        ("data:;base64,iVBORw0KGgo=", "invalid_image", "it must be a URL like data:"),
        ("data:image/png;base64,", "invalid_image", "it is empty"),
        ("data:image/png;base64,abc", "invalid_image", "it is not base64"),
        ("data:image/png;base64,ä===", "invalid_image", "it is not base64"),
        ("data:image/png;base64,iVBO Rw0K", "invalid_image", "it is not base64"),
        (url(PNG, "image/gif"), "invalid_image", "it is declared as image/gif, but"),
        (url(PNG, "text/html"), "invalid_image", "it is declared as text/html, but"),
        (url(b"<svg/>", "image/svg+xml"), "invalid_image", f"it {NOT_AN_IMAGE}"),
    ],
)
def test_a_url_that_holds_no_picture_is_refused_with_a_reason(
    given: str, code: str, why: str
) -> None:
    with pytest.raises(Refused, match=f"^{why}") as refused:
        from_url(given, "it")
    assert refused.value.code == code


def test_a_media_type_may_be_written_as_people_do() -> None:
    assert from_url(url(PNG, "IMAGE/PNG"), "it").media_type == "image/png"
    assert from_url(url(KINDS["image/jpeg"], "image/jpg"), "it").media_type == "image/jpeg"


def test_a_message_takes_so_many_pictures_and_no_more() -> None:
    check_count(PICTURES)
    with pytest.raises(Refused, match="at most 8 images") as refused:
        check_count(PICTURES + 1)
    assert refused.value.code == "too_many_images"


def test_messages_without_images_are_encoded_as_before() -> None:
    assert msgspec.json.encode(User("hi")) == b'{"role":"user","text":"hi"}'
    words = InputAdmitted(input_id=InputId("in"), run_id=RunId("run"), text="hi")
    assert b"images" not in msgspec.json.encode(words)
    shown = InputAdmitted(
        input_id=InputId("in"), run_id=RunId("run"), text="", images=(Image("image/png", PNG),)
    )
    assert msgspec.json.decode(msgspec.json.encode(shown), type=InputAdmitted) == shown
