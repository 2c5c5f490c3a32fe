"""What is attached to words at a terminal: pictures by their paths, pasted text by its label."""

import os
import shlex
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from holdfast.api.schema.runs import RunRequest
from holdfast.cli.client.input import input_of
from holdfast.cli.exits import Code
from holdfast.cli.run.attachments import Attachment, BadAttachment, check, dropped, mentioned, read
from holdfast.core.images import NOT_AN_IMAGE
from holdfast.core.messages import Image
from tests.cli import Place
from tests.fakes.model_server import ModelServer, serve

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
GIF = b"GIF89a" + bytes(100)
MB = 1 << 20


@pytest.fixture
def shot(tmp_path: Path) -> Path:
    path = tmp_path / "my shot (1)'s.png"
    path.write_bytes(PNG)
    return path


def test_a_picture_is_read_and_named(shot: Path) -> None:
    found = read(shot, 2)
    assert found == Attachment(2, "my shot (1)'s.png", Image("image/png", PNG))
    assert found.label == "[image 2 · my shot (1)'s.png]"


def test_a_label_is_one_line_whatever_the_name(tmp_path: Path) -> None:
    path = tmp_path / "a[\n\x1b].gif"
    path.write_bytes(GIF)
    assert read(path).label == "[image 1 · a____.gif]"


def test_a_bad_attachment_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("not a picture")
    (tmp_path / "huge.png").write_bytes(PNG + bytes(5 * MB))
    os.mkfifo(tmp_path / "pipe.png")
    reasons = {
        "no.png": "cannot be read: No such file",
        "text.png/a.png": "cannot be read: Not a directory",
        ".": "is not a file",
        "pipe.png": "is not a file",
        "empty.png": "empty.png is empty",
        "text.png": f"text.png {NOT_AN_IMAGE}",
        "huge.png": "huge.png is over 5 MiB",
    }
    for name, reason in reasons.items():
        with pytest.raises(BadAttachment, match=reason) as caught:
            read(tmp_path / name)
        assert caught.value.code is Code.USAGE
        assert "\n" not in str(caught.value)


def test_a_dropped_path_is_recognised_however_it_is_written(shot: Path) -> None:
    plain = shot.with_name("plain.png")
    plain.write_bytes(PNG)
    escaped = "".join(f"\\{c}" if c in " ()'" else c for c in str(shot))
    for text, paths in {
        str(shot): [shot],
        f"  {shot}\n": [shot],
        shlex.quote(str(shot)): [shot],
        f'"{shot}" ': [shot],
        escaped: [shot],
        shot.as_uri(): [shot],
        f"file://localhost{plain}": [plain],
        str(plain): [plain],
        f"{escaped} {plain}": [shot, plain],
        f"{shlex.quote(str(shot))} '{plain}' {plain}": [shot, plain],
        f"{shot.as_uri()}\r\n{plain.as_uri()}\r\n": [shot, plain],
    }.items():
        assert dropped(text) == paths, text


def test_a_path_in_the_home_directory_may_be_written_with_a_tilde(
    shot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(shot.parent))
    (shot.parent / "a.png").write_bytes(PNG)
    assert dropped("~/a.png") == [shot.parent / "a.png"]


def test_other_text_is_no_drop(shot: Path) -> None:
    plain = shot.with_name("plain.png")
    plain.write_bytes(PNG)
    notes = shot.with_name("notes.txt")
    notes.write_bytes(PNG)
    for text in (
        "",
        " \n",
        f"look at {plain}",
        f"{plain} please",
        str(notes),
        str(plain.with_name("no.png")),
        plain.name,
        "'",
        "a\0.png",
        f"file://elsewhere{plain}",
        "~nobody-has-this-name/a.png",
        "/" + "a" * 300 + ".png",
        f"{plain} " * 10_000,
    ):
        assert dropped(text) == [], text[:80]


def test_a_picture_is_named_in_the_middle_of_words_with_an_at(shot: Path) -> None:
    cwd = shot.parent
    for name in ("a.png", "b.gif"):
        (cwd / name).write_bytes(PNG)
    (cwd / "notes.txt").touch()
    for text, names in {
        "what is @a.png?": ["a.png"],
        "(@a.png) @b.gif, and @a.png again": ["b.gif", "a.png"],
        f'@"{shot.name}" and @a.png': [shot.name, "a.png"],
        "@my\\ shot\\ (1)\\'s.png": [shot.name],
        f"@{cwd}/a.png": ["a.png"],
        "me@a.png @notes.txt @no.png @ a.png": [],
        "a.png": [],
    }.items():
        assert mentioned(text, cwd) == [cwd / name for name in names], text


def test_too_much_for_one_request_is_said_before_it_is_sent() -> None:
    small = Attachment(1, "a.png", Image("image/png", PNG))
    large = Attachment(1, "b.png", Image("image/png", bytes(5 * MB)))
    check([small] * 8, "words", 10 * MB)
    check([large], "words", 10 * MB)
    check([], "w" * (20 * MB), 10 * MB)
    with pytest.raises(BadAttachment, match="at most 8 images"):
        check([small] * 9, "", 10 * MB)
    with pytest.raises(BadAttachment, match="10 MB"):
        check([large, large], "", 10 * MB)
    with pytest.raises(BadAttachment, match="limits.body_mb"):
        check([large], "w" * (4 * MB), 10 * MB)


def test_a_submission_is_plain_text_wherever_that_will_do() -> None:
    image = Image("image/png", b"a picture")
    assert input_of("hi", []) == "hi"
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,YSBwaWN0dXJl"}}
    for words, parts in (("hi", [{"type": "text", "text": "hi"}, part]), ("", [part])):
        sent = msgspec.json.encode(RunRequest(input=input_of(words, [image])))
        assert msgspec.json.decode(sent) == {"input": [{"content": parts, "role": "user"}]}


# Through the command.


@pytest.fixture
async def server(place: Place) -> AsyncIterator[ModelServer]:
    async with serve() as server:
        place.environ |= {"OPENAI_BASE_URL": server.base_url, "HOLDFAST_MODEL": "openai/fake"}
        yield server


async def test_pictures_go_with_the_words_of_a_run(place: Place, server: ModelServer) -> None:
    (place.work / "a.png").write_bytes(PNG)
    (place.work / "b.gif").write_bytes(GIF)
    result = await place.holdfast("run", "what is it", "--image", "a.png", "--image", "b.gif")
    assert (result.code, result.out) == (0, "echo: what is it\n"), result.err
    urls = [
        f"data:image/{kind};base64,{b64encode(data).decode()}"
        for kind, data in (("png", PNG), ("gif", GIF))
    ]
    assert server.requests[0].body["messages"][-1]["content"] == [
        {"type": "text", "text": "what is it"},
        *({"type": "image_url", "image_url": {"url": url}} for url in urls),
    ]


async def test_a_picture_alone_is_enough_for_a_run(place: Place, server: ModelServer) -> None:
    (place.work / "a.png").write_bytes(PNG)
    result = await place.holdfast("run", "--image", "a.png")
    assert result.code == 0, result.err
    (part,) = server.requests[0].body["messages"][-1]["content"]
    assert part["type"] == "image_url"


async def test_a_picture_that_is_none_is_wrong_usage(place: Place, server: ModelServer) -> None:
    (place.work / "a.png").write_text("no picture")
    for name, why in (("a.png", NOT_AN_IMAGE), ("b.png", "No such file")):
        result = await place.holdfast("run", "look", "--image", name)
        assert (result.code, result.out) == (2, "")
        assert why in result.err
    assert server.requests == []
