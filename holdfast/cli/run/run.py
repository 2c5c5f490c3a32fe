"""`holdfast run`: one run, its answer on stdout as it is written, its end as exit code.

Ctrl-C asks the run to stop and waits for its end; a second one leaves at once. On a
terminal the run's requests for approval are put there (cli/ask.py). Where nobody can be
asked, because the words come through a pipe, the submission says so.

Where no work is done, because commands are confined worse than before, a run is held until the
operator has accepted that: told on a terminal, and anywhere else the end (75). The run is kept.
"""

import argparse
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import aiohttp
import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec.structs import replace

from holdfast import config as configuration
from holdfast import observe
from holdfast.cli import ask, attachments, resuming, workspace
from holdfast.cli.client import Client, connect
from holdfast.cli.exits import Code, Exit
from holdfast.cli.news import News
from holdfast.cli.screen import JsonLines, Plain, Quiet, Screen
from holdfast.cli.wire import Event, Models, NotFound, Spoken, Submission, WorkspaceFixed, spoken
from holdfast.config import Config
from holdfast.core.types import Value

T = TypeVar("T")

Signals = AsyncIterator[signal.Signals]

_ASK = aiohttp.ClientTimeout(total=1.0)


class Errand(Value):
    """A submission, and what goes with it."""

    submission: Submission
    insists: bool  # its workspace was named, and is not merely where we stand
    expected: str  # the model that somebody has set; empty if nobody has
    told: bool = False  # what is to be known about the model has been said
    goes_on: bool = False  # in the session that was spoken in last


def main(args: argparse.Namespace) -> int:
    """Do one run."""
    config = load(args)
    attached = [attachments.read(Path(name), n) for n, name in enumerate(args.images, 1)]
    words = _words(args.words, needed=not attached, quiet=bool(args.quiet))
    attachments.check(attached, words, config.limits.body_mb << 20)
    said = spoken(words, [one.image for one in attached])
    errand = prepare(args, config, said)
    if args.quiet and not args.json:  # to be asked would be more than the answer
        alone = msgspec.structs.replace(errand.submission, answerable=False)
        return anyio.run(_run, config, msgspec.structs.replace(errand, submission=alone), Quiet())
    answerable = errand.submission.answerable
    screen: Screen = JsonLines() if args.json else Plain(answerable=answerable)
    return anyio.run(_run, config, errand, screen)


def load(args: argparse.Namespace) -> Config:
    """The configuration for a command that may have to start the engine itself."""
    config = configuration.from_process({"model": args.model} if args.model else {})
    observe.setup("warning", config.home / observe.CLI_LOG)
    return config


def prepare(
    args: argparse.Namespace, config: Config, said: str | tuple[Spoken, ...] = ""
) -> Errand:
    """What `args` ask for."""
    where = workspace.choose(config, args.workspace, confirmed=bool(args.yes))
    submission = Submission(
        input=said,
        workspace=str(where),
        session_id=args.session or "",
        instructions=args.instructions or "",
        model=args.model or "",
        answerable=sys.stdin is not None and sys.stdin.isatty(),
    )
    return Errand(
        submission,
        insists=args.workspace is not None,
        expected=config.asked_model,
        goes_on=bool(args.goes_on) and not args.session,
    )


async def settled(client: Client, errand: Errand) -> Errand:
    """The same, in the session that it is to go on with."""
    if not errand.goes_on:
        return errand
    found = await resuming.latest(client, errand.submission.workspace)
    submission = msgspec.structs.replace(errand.submission, session_id=found.session_id)
    return replace(errand, submission=submission, goes_on=False)


def _words(words: list[str], *, needed: bool, quiet: bool) -> str:
    """What to do: the arguments, then whatever comes through the pipe."""
    said = " ".join(w for w in words if w != "-")
    # Arguments that are no UTF-8 come as lone surrogates, which no JSON may hold.
    said = said.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    piped = sys.stdin is not None and not sys.stdin.isatty()
    context = _read_stdin(waiting=bool(said) and not quiet) if "-" in words or piped else ""
    text = "\n\n".join(part for part in (said, context) if part.strip())
    if needed and not text:
        raise Exit(Code.USAGE, 'nothing to do: say what, like: holdfast run "list the files here"')
    return text


def _read_stdin(*, waiting: bool) -> str:
    if waiting and not select.select([sys.stdin], [], [], 1.0)[0]:
        print("… reading stdin to its end (give < /dev/null if there is none)", file=sys.stderr)
    return sys.stdin.buffer.read().decode("utf-8", "replace").rstrip("\n")


async def _run(config: Config, errand: Errand, screen: Screen) -> int:
    async with connect(config, screen.note) as client:
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            errand = await settled(client, errand)
            run_id = await despite_interrupt(signals, lambda: submit(client, errand, screen))
            if run_id is None:
                raise Exit(Code.INTERRUPTED, "interrupted; the run may have been accepted")
            await tell_model(client, run_id, errand, screen)
            code = await follow(client, run_id, screen, signals)
            if client.is_owner:
                tell_running(await _left(client, run_id), screen)
            return code


async def _left(client: Client, run_id: str) -> News:
    """What the session of a run that has ended tells from its beginning on."""
    run = await client.status(run_id)
    news = News(client, run.session_id, await client.first(run_id) - 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(news.listen)
        await news.catch_up([run])
        tasks.cancel_scope.cancel()
    return news


def tell_running(news: News, screen: Screen) -> bool:
    """Say which background processes end with this process, which serves them; whether any does."""
    if news.running:
        rows = "".join(f"\n  {name}: {command}" for name, command in news.running.items())
        screen.note(
            f"● background processes end with us, all but detached ones:{rows}\n"
            "  nobody else serves the home; to have such work go on: holdfast gateway run"
        )
    return bool(news.running)


async def submit(client: Client, errand: Errand, screen: Screen) -> str:
    """Hand in the words; the id of the run that they have become."""
    submission = errand.submission
    if submission.model:
        if not await served_model(client):
            await client.runs()  # somebody serves from here on, if only we ourselves
        await check_model(client, submission)
    try:
        return await client.submit(submission)
    except WorkspaceFixed as refusal:
        if errand.insists:
            raise
        screen.note(f"not here: {refusal}")
        return await client.submit(msgspec.structs.replace(submission, workspace=""))


async def tell_model(client: Client, run_id: str, errand: Errand, screen: Screen) -> None:
    """Say what the user should know about the model that is at work."""
    used, expected = (await client.status(run_id)).model, errand.expected
    if expected and used != expected:
        screen.note(f"not {expected}: whoever owns the home serves {used}")
    elif used.partition("/")[0] == "offline":
        screen.note(
            "no model is configured: only plain commands work; see: holdfast setup, holdfast doctor"
        )


async def check_model(client: Client, submission: Submission) -> None:
    """Raise `Exit` if the model that was asked for is not the one that is served."""
    served = await served_model(client)
    if submission.model and served and served != submission.model:
        raise Exit(
            Code.USAGE,
            f"whoever owns the home serves {served}, not {submission.model}: "
            "leave --model out, or end the owner first",
        )


async def served_model(client: Client) -> str:
    """The model of whoever serves the home; empty if nobody answers."""
    try:
        async with client.http.get("/v1/models", timeout=_ASK) as response:
            models = msgspec.json.decode(await response.read(), type=Models).data
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
        return ""
    return models[0].id if models else ""


async def follow(
    client: Client,
    run_id: str,
    screen: Screen,
    signals: Signals,
    keep: ask.Keep | None = None,
) -> Code:
    """Show the run to its end, and put what it and its children ask; Ctrl-C stops it.

    `keep` takes an answer that came too late for its question.
    """
    stopped = anyio.Event()
    ending: Event | None = None
    questions: ask.Questions | None = None
    if isinstance(screen, Plain) and ask.at_terminal():
        questions = ask.Questions(client, screen, keep)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, client, run_id, screen, questions, signals, stopped)
        if questions is not None:
            tasks.start_soon(questions.put)
        tasks.start_soon(_tell_if_held, client, run_id, screen)
        async with aclosing(client.follow(run_id)) as frames:
            async for frame in frames:
                if questions is None or not questions.hear(frame.event):
                    screen.show(frame)
                if questions is not None:
                    _hear_child(client, frame.event, questions, tasks)
                ending = frame.event
        tasks.cancel_scope.cancel()
    return _code(ending, stopped=stopped.is_set())


def _hear_child(client: Client, event: Event, questions: ask.Questions, tasks: TaskGroup) -> None:
    """What a child asks is for whoever its root works for."""

    async def listen(child: str) -> None:
        try:
            async with aclosing(client.follow(child)) as frames:
                async for frame in frames:
                    questions.hear(frame.event)
                    _hear_child(client, frame.event, questions, tasks)
        except Exit:
            return  # it is gone, or nobody serves: the run itself tells of that

    if event.event == "subagent.started":
        tasks.start_soon(listen, event.child_run_id)


async def _tell_if_held(client: Client, run_id: str, screen: Screen) -> None:
    """Say that no work is done, and why. Where nobody would read it, do not wait for it."""
    health = await client.health()
    if health is None or not health.paused or (await client.status(run_id)).ended:
        return
    if not (isinstance(screen, Plain) and ask.at_terminal()):
        raise Exit(
            Code.TRY_AGAIN,
            f"run {run_id} is kept and held: {health.paused}; then: holdfast runs {run_id}",
        )
    screen.note(f"… held: {health.paused} (in another terminal; Ctrl-C stops the run)")


async def _stop_on_signal(
    client: Client,
    run_id: str,
    screen: Screen,
    questions: ask.Questions | None,
    signals: Signals,
    stopped: anyio.Event,
) -> None:
    async with anyio.create_task_group() as tasks:
        async for _ in signals:
            if stopped.is_set():
                screen.note(f"left run {run_id}; to see how it ends: holdfast runs {run_id}")
                sys.stdout.flush()
                os._exit(Code.INTERRUPTED)  # at once: whatever still hangs must not hold us
            stopped.set()
            if questions is not None:
                questions.leave()
            screen.note("stopping … (Ctrl-C again leaves at once)")
            tasks.start_soon(_stop, client, run_id)


async def _stop(client: Client, run_id: str) -> None:
    try:
        await client.stop(run_id)
    except NotFound:
        pass  # it was faster; its own end comes through `follow`


def _code(ending: Event | None, *, stopped: bool) -> Code:
    match ending:
        case Event(event="run.completed"):
            return Code.OK
        case Event(event="run.cancelled") if stopped:
            return Code.INTERRUPTED
        case Event(event="run.failed", code="model_rejected"):
            return Code.REJECTED
        case _:
            return Code.FAILED


async def despite_interrupt(signals: Signals, work: Callable[[], Awaitable[T]]) -> T | None:
    """What `work` returns; a Ctrl-C meanwhile is for whatever is next, a second one leaves."""
    result: T | None = None
    heard = 0
    async with anyio.create_task_group() as tasks:

        async def listen() -> None:
            nonlocal heard
            async for _ in signals:
                heard += 1
                if heard == 2:
                    tasks.cancel_scope.cancel()

        tasks.start_soon(listen)
        result = await work()
        tasks.cancel_scope.cancel()
    if result is not None and heard:
        signal.raise_signal(signal.SIGINT)
    return result


async def unless_interrupted(signals: Signals, work: Callable[[], Awaitable[T]]) -> T | None:
    """What `work` returns, or None if Ctrl-C comes first."""
    result: T | None = None
    interrupted = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def leave() -> None:
            await anext(signals)
            interrupted.set()
            tasks.cancel_scope.cancel()

        tasks.start_soon(leave)
        result = await work()
        tasks.cancel_scope.cancel()
    if result is not None and interrupted.is_set():
        signal.raise_signal(signal.SIGINT)  # both came at once: it is for whatever is next
    return result
