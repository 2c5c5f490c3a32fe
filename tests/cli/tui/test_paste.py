"""What is pasted arrives whole, once, and where it was put, whatever is done with its label."""

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.cli.run.attachments import BadAttachment
from holdfast.cli.tui.input.paste import CHARACTERS, LINES, Pastes, clean
from holdfast.core.images import NOT_AN_IMAGE

NINE = "x\n" * 9
PNG = b"\x89PNG\r\n\x1a\n" + b"data"
LARGE = st.text(min_size=1).map(lambda text: clean(text) + "\n" * (LINES + 1) + "end")
WORDS = st.text(alphabet=st.characters(exclude_categories=["Cs"]))


def picture(path: Path, data: bytes = PNG) -> Path:
    path.write_bytes(data)
    return path


def test_a_little_text_goes_in_as_it_is_and_harmless() -> None:
    pastes = Pastes()
    assert pastes.paste("a\r\nb\rc\td\x1b[31m\x00\x7f\x9b\udcff") == "a\nb\nc\td[31m�"
    assert pastes.paste("x\n" * LINES) == "x\n" * LINES
    assert pastes.paste("x" * CHARACTERS) == "x" * CHARACTERS
    assert pastes.paste("") == ""


def test_much_text_is_a_label_that_says_how_much() -> None:
    pastes = Pastes()
    assert pastes.paste("x\r\n" * 120) == "[pasted text 1 · 120 lines]"
    assert pastes.paste("x" * 5000) == "[pasted text 2 · 5000 characters]"
    whole = pastes.expand("see [pasted text 1 · 120 lines], please")
    assert whole == "see " + "x\n" * 120 + ", please"


@given(before=WORDS, texts=st.lists(st.tuples(LARGE, WORDS), min_size=1, max_size=4))
def test_every_text_comes_back_in_its_place(before: str, texts: list[tuple[str, str]]) -> None:
    pastes = Pastes()
    line = whole = before
    for text, words in texts:
        line += pastes.paste(text, line) + words
        whole += text + words
    assume(all(line.count(label) == 1 for label in labels(pastes, line)))
    assert pastes.expand(line) == whole
    assert pastes.take(line) == (whole, [])


@given(texts=st.lists(st.tuples(LARGE, WORDS), min_size=1, max_size=4))
def test_a_returned_message_has_its_labels_again(texts: list[tuple[str, str]]) -> None:
    pastes = Pastes()
    line = "".join([pastes.paste(text) + words for text, words in texts])
    made, whole = labels(pastes, line), pastes.expand(line)
    assert pastes.expand(pastes.fold(whole)) == whole
    assert not made or any(label in pastes.fold(whole) for label in made)


def labels(pastes: Pastes, line: str) -> list[str]:
    return [line[begin:end] for begin, end in pastes.spans(line)]


def test_text_that_only_looks_like_a_label_stays_text() -> None:
    pastes = Pastes()
    label = pastes.paste(NINE)
    for words in (label[:-1], label[1:], label.replace("9", "8"), label.replace("1", "2")):
        assert pastes.expand(words) == words
    assert Pastes().expand(label) == label
    assert pastes.expand(f"[image 1 · {label}") == f"[image 1 · {NINE}"


def test_a_label_that_stands_there_twice_does_not_double_its_text() -> None:
    pastes = Pastes()
    label = pastes.paste(NINE)
    assert pastes.expand(f"{label} and {label}") == f"{NINE} and {label}"
    assert pastes.expand(label) == pastes.expand(label) == NINE


def test_a_label_within_pasted_text_is_only_text() -> None:
    pastes = Pastes()
    first = pastes.paste("[pasted text 2 · 9 lines]\n" * 9)
    second = pastes.paste(NINE)
    assert second == "[pasted text 2 · 9 lines]"
    whole = pastes.expand(first + second)
    assert whole == "[pasted text 2 · 9 lines]\n" * 9 + NINE


def test_words_that_stand_there_already_do_not_become_a_label() -> None:
    pastes = Pastes()
    words = "is [pasted text 1 · 9 lines] a label? "
    label = pastes.paste(NINE, words)
    assert label == "[pasted text 2 · 9 lines]"
    assert pastes.expand(words + label) == words + NINE
    assert pastes.paste("y\n" * 9) == "[pasted text 3 · 9 lines]"


def test_a_label_is_found_where_it_stands() -> None:
    pastes = Pastes()
    label = pastes.paste(NINE)
    line = f"a {label}"
    assert list(pastes.spans(f"{line}b{label} [pasted text 9 · 9 lines]")) == [
        (2, len(line)),
        (len(line) + 1, len(line) + 1 + len(label)),
    ]


@given(st.data())
def test_an_edit_takes_a_label_whole_or_leaves_it_whole(data: st.DataObject) -> None:
    pastes = Pastes()
    words = st.text(alphabet="ab [", max_size=3)
    line = data.draw(words)
    for _ in range(data.draw(st.integers(1, 3))):
        line += pastes.paste(NINE, line) + data.draw(words)
    begin = data.draw(st.integers(0, len(line)))
    end = data.draw(st.integers(begin, len(line)))
    new = data.draw(st.text(alphabet="ab [", min_size=1)) if begin == end else ""
    mended, cursor = pastes.mended(line, line[:begin] + new + line[end:], begin + len(new))
    left = [line[a:b] for a, b in pastes.spans(line) if not (begin < b and a < end) or new]
    assert labels(pastes, mended) == left
    gone = {at for a, b in pastes.spans(line) for at in range(a, b)} | set(range(begin, end))
    rest = "".join(letter for at, letter in enumerate(line) if at not in gone)
    assert len(mended) == len(rest) + len(new) + len("".join(left))
    assert mended[:cursor].endswith(new)
    assert not any(a < cursor < b for a, b in pastes.spans(mended))


def test_letters_of_a_label_cannot_be_changed() -> None:
    pastes = Pastes()
    label = pastes.paste(NINE)
    line = f"see {label}"
    assert pastes.mended(line, line.replace("pasted", "PASTED"), 11) == (line, 11)
    assert pastes.mended(line, line.replace("see", "SEE"), 3) == (f"SEE {label}", 3)
    assert pastes.mended(line, line, 3) == (line, 3)


def test_a_line_that_is_replaced_by_another_is_just_that_other() -> None:
    pastes = Pastes()
    one, two = pastes.paste(NINE), pastes.paste("y\n" * 9)
    assert pastes.mended(one, two, len(two)) == (two, len(two))
    assert pastes.mended(f"{one} more", "something else", 9) == ("something else", 9)
    assert pastes.mended(f"{one}{two}", two, 0) == (two, 0)


def test_the_dropped_path_of_a_picture_is_the_picture(tmp_path: Path) -> None:
    pastes = Pastes()
    one, two = picture(tmp_path / "a b.png"), picture(tmp_path / "c[1].png")
    line = pastes.paste(f"'{one}' ")
    assert line == "[image 1 · a b.png]"
    line += f" or {pastes.paste(f'{two}')}"
    assert line == "[image 1 · a b.png] or [image 2 · c_1_.png]"
    words, images = pastes.take(f"{line} {line}")
    assert words == f"{line} {line}"
    assert [one.name for one in images] == ["a b.png", "c[1].png"]
    assert {one.image.data for one in images} == {PNG}
    assert pastes.take("or [image 2 · c_1_.png]")[1] == images[1:]
    assert pastes.remembered(line) == f'@"{one}" or @{two}'


def test_a_file_that_is_no_picture_stays_text_with_the_reason(tmp_path: Path) -> None:
    said: list[str] = []
    pastes = Pastes(said.append)
    wrong = picture(tmp_path / "a.png", b"no picture")
    assert pastes.paste(str(wrong)) == str(wrong)
    assert said == [f"a.png {NOT_AN_IMAGE}"]
    assert pastes.paste(str(tmp_path / "none.png")) == str(tmp_path / "none.png")
    assert len(said) == 1


def test_a_mentioned_picture_goes_along_unless_pasted_text_mentions_it(tmp_path: Path) -> None:
    pastes = Pastes()
    shot = picture(tmp_path / "shot.png")
    label = pastes.paste("@shot.png\n" * 9)
    assert pastes.take(label, tmp_path)[1] == []
    assert pastes.take("see @shot.png")[1] == []  # nobody said where that would be
    words, images = pastes.take("see @shot.png", tmp_path)
    assert words == "see @shot.png"
    assert [one.name for one in images] == ["shot.png"]
    dropped = pastes.paste(str(shot))
    assert len(pastes.take(f"{dropped} @shot.png", tmp_path)[1]) == 1
    picture(shot, b"no picture")
    with pytest.raises(BadAttachment):
        pastes.take("see @shot.png", tmp_path)
