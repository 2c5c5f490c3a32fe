"""Logging: a line of JSON that shows no secret, whichever way one came into it."""

import io
import json
import logging
from base64 import b64encode
from collections.abc import Iterator

import pytest

from holdfast.core.redaction import REDACTED, Redactor
from holdfast.host import observe

pytestmark = pytest.mark.fault("F-39")

SECRET = 'sk-"canary"\\0001'


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a logger of our form writes."""
    form = observe.JsonFormatter()
    form.redactor = Redactor([SECRET])
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(form)
    logger = logging.getLogger("tests.observe")
    logger.propagate = False
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)
    logger.propagate = True


def said(lines: io.StringIO) -> dict[str, str]:
    text = lines.getvalue()
    assert "canary" not in text
    return dict(json.loads(text))


def test_a_secret_in_the_message_or_its_arguments_is_not_shown(lines: io.StringIO) -> None:
    logging.getLogger("tests.observe").warning("key %s of %d", SECRET, 2)
    assert said(lines)["message"] == f"key {REDACTED} of 2"


def test_a_secret_in_a_field_of_any_kind_is_not_shown(lines: io.StringIO) -> None:
    fields = {
        "error": ValueError(SECRET),
        "text": json.dumps({"key": SECRET}),
        "many": [SECRET, b64encode(SECRET.encode()).decode()],
    }
    logging.getLogger("tests.observe").warning("odd", extra=fields)
    shown = said(lines)
    assert shown["error"] == REDACTED
    assert json.loads(shown["text"]) == {"key": REDACTED}
    assert shown["many"][0] == REDACTED


def test_a_secret_in_an_exception_is_not_shown_in_its_trace(lines: io.StringIO) -> None:
    try:
        raise RuntimeError(f"refused {SECRET}")
    except RuntimeError:
        logging.getLogger("tests.observe").exception("broke")
    assert f"RuntimeError: refused {REDACTED}" in said(lines)["trace"]
