"""Undo, rewind and redo through the front door: messages and files go back and forth together."""

from pathlib import Path

import pytest

from holdfast.core.session.rewound import FileResult
from tests.engine.rewinds import bench, results

pytestmark = pytest.mark.anyio


async def test_undo_takes_back_the_last_message_and_what_it_did_to_files(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.say("a=1")
        await b.say("a=2 b=1 c:=1")
        assert b.files() == {"a": "2", "b": "1", "c": "1"}
        done = await b.go()
        assert done.text == "a=2 b=1 c:=1"
        assert results(done) == {
            "a": FileResult.RESTORED,
            "b": FileResult.DELETED,
            "c": FileResult.DELETED,
        }
        assert (b.files(), await b.said()) == ({"a": "1"}, ["a=1"])
        done = await b.go(redo=True)
        assert b.files() == {"a": "2", "b": "1", "c": "1"}
        assert await b.said() == ["a=1", "a=2 b=1 c:=1"]
