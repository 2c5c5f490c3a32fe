"""Tools that come and go while a run works."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.core.messages import ToolResult
from holdfast.core.run.call import OnCrash
from holdfast.tools.tool import Context, Done, Effect, Outcome, Tool, ToolAllowed
from tests.engine.workshop import Told, call, follow, serving, submit

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


async def _look(context: Context, arguments: dict[str, Any]) -> Outcome:
    return Done(f"sunny in {arguments['city']}")


async def _free(context: Context, arguments: object) -> ToolAllowed:
    return ToolAllowed()


def tool(name: str) -> Tool[dict[str, Any]]:
    return Tool(
        name=name,
        description="Look at the weather.",
        arguments=dict[str, Any],
        effect=Effect.READ,
        on_crash=OnCrash.REPEAT,
        timeout_s=5.0,
        run=_look,
        preview=lambda arguments: "the weather",
        permit=_free,
        schema=SCHEMA,
    )


@pytest.mark.promise("MODEL-06")
async def test_tools_come_and_go_between_the_turns_of_a_run(tmp_path: Path) -> None:
    first, second = (tool("weather"),), (tool("forecast"),)
    now = first
    model = Told()
    async with serving(tmp_path, model, tools=lambda: now) as service:
        run_id = await submit(service, "go")
        asked = await model.asked(1)
        assert [(t.name, t.schema) for t in asked.request.tools] == [("weather", SCHEMA)]
        asked.answer("", call("weather", '{"city": "Bern"}', "c1"))
        asked = await model.asked(2)
        assert asked.messages[-1] == ToolResult(call("", "", "c1").call_id, "sunny in Bern")

        now = second
        asked.answer("", call("weather", '{"city": "Bern"}', "c2"), call("forecast", "[]", "c3"))
        asked = await model.asked(3)
        assert [t.name for t in asked.request.tools] == ["forecast"]
        gone, unfit = (m.text for m in asked.messages[-2:])
        assert "'weather'" in gone and "forecast" in gone, "it says which tools there are"
        assert "do not fit" in unfit
        asked.answer("", call("forecast", msgspec.json.encode({"city": "Ulm"}).decode(), "c4"))
        asked = await model.asked(4)
        assert asked.messages[-1].text == "sunny in Ulm"
        asked.answer("done")
        await follow(service, run_id)
