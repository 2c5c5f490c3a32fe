"""Typing while a run works, over many schedules of the race.

    HOLDFAST_HALT_SEEDS=500 pytest tests/cli/tui/test_schedules.py     that many, not the few of `make test`
    HOLDFAST_HALT_SEED=47 pytest tests/cli/tui/test_schedules.py     one again, as its failure says

The terminal, the engine and a model on loopback are in one process: the real ones, up to the wire.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import anyio
import pytest

from holdfast.cli.client.client import Client, connect
from holdfast.config.load import load
from holdfast.config.settings import Config
from holdfast.core.inbox import Mode
from tests.cli.tui.desk import ENTER, SWITCH, UP, Desk, paste, sitting
from tests.cli.tui.schedule import (
    PATIENCE_S,
    PNG,
    Move,
    Play,
    judge,
    pictures,
    plan,
    text,
    told,
)
from tests.cli.tui.stage import News, Stage
from tests.fakes.model_server import ModelServer, serve

pytestmark = pytest.mark.anyio

CHUNK = 20  # schedules of one test: one home, and a time limit


def chunks() -> list[range]:
    """The seeds, in tests of some."""
    if one := os.environ.get("HOLDFAST_HALT_SEED"):
        return [range(int(one), int(one) + 1)]
    count = int(os.environ.get("HOLDFAST_HALT_SEEDS", "60"))
    return [range(n, min(n + CHUNK, count)) for n in range(0, count, CHUNK)]


@asynccontextmanager
async def house(root: Path) -> AsyncIterator[tuple[Config, Client, ModelServer]]:
    """A home with its engine in this process, and a model."""
    home, work = root / "home", root / "work"
    work.mkdir()
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text('plugins = ["tests.cli.tui.stage"]\n')
    async with serve() as model:
        environ = {
            "HOME": str(root),
            "HOLDFAST_HOME": str(home),
            "HOLDFAST_MODEL": "openai/fake",
            "OPENAI_BASE_URL": model.base_url,
        }
        config = load(environ, {})
        async with connect(config, lambda note: None, linger_s=0.0) as owner:
            await owner.runs(limit=1)
            yield config, owner, model


async def play(seed: int, root: Path, house: tuple[Config, Client, ModelServer]) -> list[str]:
    """Live through the schedule of that seed; what is wrong after it."""
    config, owner, model = house
    news, moves, name, chance = News(), plan(seed), f"ses_{seed}", Random(seed)
    stage = Stage(chance, news)
    model.otherwise = stage.answer
    model.requests.clear()
    escape_s = chance.choice((0.0, 0.005, 0.02))
    async with sitting(config, name, root / "work", news, escape_s) as desk:
        game = Play(moves, desk, stage, root)
        try:
            with anyio.fail_after(PATIENCE_S):
                await game.run()
                await game.finish(model.requests)
                events = await told(owner, name)
                done = [e.output for e in events if e.event == "run.completed"]
                await news.until(lambda: done[-1] in desk.paper.printed)
        except TimeoutError:
            missing, view = game.missing(model.requests), desk.ui.view
            return [f"no end: missing {missing}, waiting {view.waiting}", desk.paper.printed]
        return judge(game, desk, model.requests, events)


def story(seed: int, moves: list[Move], wrong: list[str]) -> str:
    again = f"again: HOLDFAST_HALT_SEED={seed} pytest tests/cli/tui/test_schedules.py"
    told = [f"  {m.moment.value}, {m.yields} turns later: {m.what}"[:200] for m in moves]
    return "\n".join([f"seed {seed}; {again}", *told, "wrong:", *wrong])


@pytest.mark.promise("HALT-01", "HALT-02", "HALT-03", "HALT-07")
@pytest.mark.parametrize("seeds", chunks(), ids=str)
async def test_messages_typed_during_a_run_are_read_once_and_in_order(
    seeds: range, tmp_path: Path
) -> None:
    async with house(tmp_path) as here:
        for seed in seeds:
            wrong = await play(seed, tmp_path, here)
            assert not wrong, story(seed, plan(seed), wrong)


@asynccontextmanager
async def at_work(root: Path) -> AsyncIterator[tuple[Desk, Stage, ModelServer]]:
    """A terminal with a run that has been asked something and waits for its cue."""
    async with house(root) as (config, _, model):
        news = News()
        stage = Stage(Random(0), news, calls=0.0)
        model.otherwise = stage.answer
        with anyio.fail_after(PATIENCE_S):
            async with sitting(config, "ses_0", root / "work", news) as desk:
                desk.press("begin" + ENTER)
                await news.until(lambda: bool(stage.turns) and bool(desk.ui.view.run_id))
                yield desk, stage, model


@pytest.mark.promise("HALT-08")
async def test_words_do_what_was_chosen_when_they_were_sent(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (desk, stage, model):
        desk.press("stop that" + ENTER + SWITCH)
        await desk.news.until(lambda: len(stage.turns) > 1)
        assert desk.ui.mode is Mode.QUEUE
        assert text(model.requests[-1]) == "begin\nstop that"


@pytest.mark.promise("HALT-01", "HALT-07")
@pytest.mark.parametrize("mode", [Mode.STEER, Mode.QUEUE], ids=str)
async def test_an_unread_message_returns_complete_and_can_be_sent_again(
    mode: Mode, tmp_path: Path
) -> None:
    picture, pasted = tmp_path / "picture.png", "\n".join(f"line {n}" for n in range(40))
    picture.write_bytes(PNG)
    async with at_work(tmp_path) as (desk, stage, model):
        ui = desk.ui
        desk.press(SWITCH * (1 + list(Mode).index(mode)))
        desk.press(f"look {paste(str(picture))} at {paste(pasted)}{ENTER}")
        await desk.news.until(lambda: desk.shows("look") or bool(ui.view.waiting))
        if mode is Mode.STEER:
            await desk.escape()
        else:
            desk.press(UP)
        await desk.news.until(lambda: bool(ui.buffer.text))
        assert ui.buffer.text == "look [image 1 · picture.png] at [pasted text 1 · 40 lines]"
        stage.release()
        desk.press(ENTER)
        await desk.news.until(lambda: "look" in text(model.requests[-1]))
        assert text(model.requests[-1]) == f"begin\nlook [image 1 · picture.png] at {pasted}"
        assert len(pictures(model.requests[-1])) == 1
