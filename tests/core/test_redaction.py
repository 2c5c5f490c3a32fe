"""Redaction: whatever is known goes, in every form and however the text is cut; nothing else."""

import base64
import json
import re
import timeit
from time import process_time
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.inbox import Idempotency, InputAdmitted
from holdfast.core.messages import Assistant, Proposal, User
from holdfast.core.redaction import REDACTED, SHORTEST, Redactor
from holdfast.core.run.call import CallSettled, Kept, Outcome
from holdfast.core.run.run import ModelAnswered
from holdfast.core.types import CallId, InputId, RunId

pytestmark = pytest.mark.fault("F-39")

KEY = 'sk-"Kx+/\\Zq?&%7e_longer-than-a-word=='
OWN = "0123456789abcdef" * 4

# Few letters, so that secrets overlap, begin alike and hide in the text around them; no
# brackets, because a secret that is part of the word we put in its place cannot leave.
LETTERS = "ab/"
SECRETS = st.lists(st.text(LETTERS, min_size=SHORTEST, max_size=20), min_size=1, max_size=3)


def forms(secret: str) -> dict[str, str]:
    """How a program might print it, made without the code under test."""
    raw = secret.encode()
    around = [b"", b"x", b"xy", b"user:", b"Bearer "]
    return {
        "raw": secret,
        "json": json.dumps({"key": secret}),
        "json, in UTF-8": json.dumps(secret, ensure_ascii=False),
        "hex": raw.hex(),
        "HEX": raw.hex().upper(),
        "url": quote(secret, safe=""),
        "path": quote(secret),
        "url, lower": re.sub("%..", lambda m: m[0].lower(), quote(secret, safe="")),
        "url, every character": "".join(f"%{b:02x}" for b in raw),
        "url, either case": "".join(f"%{b:02{'xX'[n % 2]}}" for n, b in enumerate(raw)),
        "json, slashes escaped": json.dumps(secret).replace("/", "\\/")[1:-1],
        "json, every character": "".join(f"\\u{ord(c):04x}" for c in secret),
        **{f"hex, {sep!r}": raw.hex(sep) for sep in " :-_."},
        **{f"HEX, {sep!r}": raw.hex(sep).upper() for sep in " :-"},
        "hex in pairs": raw.hex(" ", -2),
        "hex as od writes it": "\n".join(
            f" {raw[n : n + 5].hex(' ')}" for n in range(0, len(raw), 5)
        ),
        "hex in C": ", ".join(f"0x{b:02x}" for b in raw),
        "hex in a string": "".join(f"\\x{b:02x}" for b in raw),
        "base64 in lines": "\n".join(_lines(base64.b64encode(raw).decode(), 5)),
        "base64 in JSON": json.dumps("\n".join(_lines(base64.b64encode(raw).decode(), 5)))[1:-1],
        **{f"base64 after {a!r}": base64.b64encode(a + raw + b"\n").decode() for a in around},
        **{f"url-safe after {a!r}": base64.urlsafe_b64encode(a + raw).decode() for a in around},
    }


def _lines(text: str, width: int) -> list[str]:
    return [text[at : at + width] for at in range(0, len(text), width)]


@st.composite
def texts_in_pieces(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    secrets = draw(SECRETS)
    written = [form for s in secrets for form in (s, *forms(s).values())]
    parts = st.one_of(
        st.sampled_from(written),
        st.text(LETTERS, max_size=6),
        st.sampled_from(written).flatmap(lambda f: st.integers(0, len(f)).map(lambda n: f[:n])),
    )
    text = "".join(draw(st.lists(parts, max_size=8)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    places = [0, *cuts, len(text)]
    return secrets, [text[a:b] for a, b in zip(places, places[1:], strict=False)]


@given(texts_in_pieces())
def test_a_text_in_pieces_is_redacted_as_the_whole(
    given: tuple[list[str], list[str]],
) -> None:
    secrets, pieces = given
    redactor = Redactor(secrets)
    stream = redactor.stream()
    shown = "".join([*map(stream.feed, pieces), stream.flush()])
    assert shown == redactor.clean("".join(pieces))
    for secret in secrets:
        assert secret not in shown
        assert secret.encode().hex() not in shown


@given(texts_in_pieces())
def test_only_what_may_begin_something_known_is_held_back(
    given: tuple[list[str], list[str]],
) -> None:
    secrets, pieces = given
    stream = Redactor(secrets).stream()
    for piece in pieces:
        stream.feed(piece)
    held = stream.flush()
    if REDACTED in held or any(held in form for s in secrets for form in forms(s).values()):
        return
    if any(_begins_a_dump(held, secret) for secret in secrets):
        return
    # Escaped here and not there: what of it is whole must be how a secret goes on.
    plain = re.sub(r"(?:%|\\u00)([0-9a-fA-F]{2})", lambda m: chr(int(m[1], 16)), held)
    plain = re.sub(r"(?:%.?|\\(?:u.{0,3})?)$", "", plain.replace("\\/", "/"))
    assert any(plain in s for s in secrets), held


def _begins_a_dump(held: str, secret: str) -> bool:
    """Tell whether it may be hex of the secret with any gaps, the last perhaps cut: "61 0"."""
    digits = re.sub(r"0[xX]|[^0-9a-fA-F]", "", held).lower()
    is_hex = re.fullmatch(r"[0-9a-fA-F][0-9a-fA-F\\\r\n\t rnt:,;._xX%-]*", held)
    dump = secret.encode("utf-8", "surrogatepass").hex()
    return is_hex is not None and (digits in dump or digits.removesuffix("0") in dump)


@given(SECRETS, st.text(LETTERS, max_size=200), st.integers(0, 200))
def test_a_text_that_is_cut_short_ends_in_no_beginning_of_a_secret(
    secrets: list[str], text: str, limit: int
) -> None:
    redactor = Redactor(secrets)
    short = redactor.cut(text, limit)
    assert len(short) <= limit
    assert redactor.clean(text).startswith(short)


@pytest.mark.parametrize("secret", [KEY, OWN, "sk-12345", "päßwörter"])
def test_every_form_in_which_a_secret_is_printed_goes(secret: str) -> None:
    redactor = Redactor([secret])
    for name, text in forms(secret).items():
        clean = redactor.clean(f"before {text} after")
        assert REDACTED in clean, name
        assert clean.startswith("before ") and clean.endswith(" after"), name
        left = clean.replace(REDACTED, "").removeprefix("before ").removesuffix(" after")
        assert len(left) <= 24, (name, left)  # what stood around it, and the edges of base64


@pytest.mark.parametrize("end", ["\n", "\r\n", "\\n", "\n    "])
@pytest.mark.parametrize("secret", [KEY, "sk-12345"])
def test_the_line_ends_of_base64_hide_no_secret_wherever_they_fall(secret: str, end: str) -> None:
    redactor = Redactor([secret])
    for before in range(60):
        encoded = base64.b64encode(b"x" * before + secret.encode() + b"y" * 30).decode()
        text = end.join(_lines(encoded, 76))
        clean = redactor.clean(text)
        assert REDACTED in clean, before
        for size in (1, 7, 77):
            stream = redactor.stream()
            pieces = [stream.feed(piece) for piece in _lines(text, size)]
            assert "".join([*pieces, stream.flush()]) == clean, (before, size)
        whole = clean.replace(end, "")
        left = [c for c in _codes(secret, before) if c in whole]
        assert not left, (before, left)


def _codes(secret: str, before: int) -> list[str]:
    """Every four characters of base64 that stand for three of the secret's."""
    encoded = base64.b64encode(bytes(before % 3) + secret.encode()).decode()
    return [encoded[at : at + 4] for at in range(4, len(encoded) - 8, 4)]


def test_a_line_is_not_held_back_for_how_it_ends() -> None:
    encoded = base64.b64encode(KEY.encode()).decode()
    stream = Redactor([KEY]).stream()
    for line in (f"ends in {encoded[0]}\n", f"ends in {encoded[:2]}\n", "and goes on\n"):
        assert stream.feed(line) == line


def test_text_without_a_secret_is_the_same_object() -> None:
    redactor = Redactor([KEY, OWN])
    text = "sk- is how they begin, 0123 is how they count"
    assert redactor.clean(text) is text
    assert redactor.stream().feed("hello ") == "hello "


def test_a_tail_is_shown_as_soon_as_it_begins_no_secret() -> None:
    stream = Redactor(["sk-12345678"]).stream()
    assert stream.feed("it asks") == "it ask"
    assert stream.feed("k") == ""
    assert stream.feed("i lift") == "ski lift"
    assert stream.feed(" sk-1234") == " "
    assert stream.feed("5678!") == REDACTED + "!"
    assert stream.feed("sk-1234") == ""
    assert stream.flush() == "sk-1234"


def test_the_longer_of_two_secrets_that_begin_alike_is_waited_for() -> None:
    redactor = Redactor(["12345678", "1234567890"])
    stream = redactor.stream()
    assert stream.feed("12345678") == ""
    assert stream.feed("90.") == REDACTED + "."
    assert stream.feed("123456789") == ""
    assert stream.flush() == REDACTED + "9"


def test_a_short_secret_is_not_redacted() -> None:
    redactor = Redactor(["ollama", "x" * (SHORTEST - 1), ""])
    text = "ask ollama " + "x" * 40
    assert redactor.clean(text) is text


def test_every_text_of_a_fact_is_cleaned_but_its_ids_and_places() -> None:
    redactor = Redactor([KEY])
    answer = ModelAnswered(
        run_id=RunId("run_1"),
        turn=1,
        text=f"it is {KEY}",
        reasoning=f"{KEY}?",
        calls=(Proposal(CallId("c1"), "read_file", json.dumps({"path": KEY})),),
    )
    assert redactor.cleaned(answer) == ModelAnswered(
        run_id=RunId("run_1"),
        turn=1,
        text=f"it is {REDACTED}",
        reasoning=f"{REDACTED}?",
        calls=(Proposal(CallId("c1"), "read_file", json.dumps({"path": REDACTED})),),
    )
    settled = CallSettled(
        run_id=RunId("run_1"),
        call_id=CallId("c1"),
        tool="t",
        outcome=Outcome.OK,
        text=KEY,
        cwd=f"/{KEY}",
        kept=(Kept(path=KEY, blob="0" * 64),),
    )
    clean = redactor.cleaned(settled)
    assert (clean.text, clean.cwd, clean.kept) == (REDACTED, settled.cwd, settled.kept)


def test_a_submission_is_redacted_with_its_history_and_metadata() -> None:
    admitted = InputAdmitted(
        input_id=InputId("in_1"),
        run_id=RunId("run_1"),
        text=KEY,
        instructions=OWN,
        history=(User(KEY), Assistant("ok", (Proposal(CallId("c"), "t", OWN),))),
        metadata={"key": KEY},
        idempotency=Idempotency(route="r", key=KEY, fingerprint=OWN),
    )
    clean = Redactor([KEY, OWN]).cleaned(admitted)
    assert clean.text == clean.instructions == REDACTED
    history = (User(REDACTED), Assistant("ok", (Proposal(CallId("c"), "t", REDACTED),)))
    assert (clean.history, clean.metadata) == (history, {"key": REDACTED})
    assert clean.idempotency == Idempotency(route="r", key=REDACTED, fingerprint=OWN)


def test_a_clean_fact_is_the_same_object() -> None:
    admitted = InputAdmitted(
        input_id=InputId("in_1"), run_id=RunId("run_1"), text="hello", history=(User("hi"),)
    )
    assert Redactor([KEY]).cleaned(admitted) is admitted
    assert Redactor([]).cleaned(admitted) is admitted


def test_a_redactor_does_not_show_what_it_knows() -> None:
    assert KEY not in repr(Redactor([KEY]))
    assert KEY not in str(Redactor([KEY]).stream())


def test_a_piece_with_nothing_in_it_costs_hardly_anything() -> None:
    feed = Redactor([KEY, OWN]).stream().feed
    rounds = timeit.repeat(lambda: feed("hello"), timer=process_time, number=10_000, repeat=5)
    assert min(rounds) / 10_000 < 5e-6  # CPU time: 0.2 µs, and 1 µs where coverage is measured


def test_values_that_are_not_text_are_unchanged() -> None:
    class Mixed(msgspec.Struct, frozen=True):
        parts: tuple[str | int, ...]

    secret = "correct-horse-battery"
    redactor = Redactor([secret])
    assert redactor.cleaned(Mixed((7, f"is {secret}"))) == Mixed((7, "is [redacted]"))


def test_a_text_that_is_not_cut_keeps_its_end() -> None:
    assert Redactor(["sk-secret-0"]).cut("ls", 200) == "ls"
    assert Redactor(["sk-secret-0"]).cut("tests", 5) == "tests"


def test_a_name_hides_a_secret_or_does_not() -> None:
    redactor = Redactor(["sk-secret-0"])
    assert redactor.hides("/work/sk-secret-0/src")
    assert not redactor.hides("/work/src")
