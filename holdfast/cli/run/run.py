"""`holdfast run`: one run; its answer goes to stdout as it arrives, its result to the exit code.

Ctrl-C stops the run and waits for its end; a second one exits at once. On a terminal, approvals are
asked there (cli/run/ask.py). If the input comes from a pipe, no user can be asked, and the request
says so.

If work is paused, because commands are confined worse than before, the run is held until the
operator accepts that. A terminal shows a note; elsewhere the exit code is 75. The run is kept.
"""

import argparse
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiohttp
import anyio
import msgspec
from msgspec.structs import replace

from holdfast.api.schema.events import Event
from holdfast.api.schema.health import HealthDetails, ModelList
from holdfast.api.schema.runs import InputMessage
from holdfast.cli.client import latest, operator
from holdfast.cli.client.client import Client, connect
from holdfast.cli.client.input import input_of
from holdfast.cli.client.refusals import NotFound, WorkspaceFixed
from holdfast.cli.exits import Code, Exit
from holdfast.cli.run import ask, attachments, notes
from holdfast.cli.run import options as run_options
from holdfast.cli.run.news import News
from holdfast.cli.run.options import RunOptions
from holdfast.cli.run.questions import hear_children
from holdfast.cli.run.screen import JsonScreen, Plain, Quiet, Screen
from holdfast.config.settings import Config

NO_MESSAGE = 'the message is missing, for example: holdfast run "list the files here"'

T = TypeVar("T")

Signals = AsyncIterator[signal.Signals]
Input = str | tuple[InputMessage, ...]

_ASK = aiohttp.ClientTimeout(total=1.0)


def main(args: argparse.Namespace) -> int:
    """Do one run."""
    config = operator.load({"model": args.model})
    attached = [attachments.read(Path(name), n) for n, name in enumerate(args.images, 1)]
    words = _words(args.words, needed=not attached, quiet=bool(args.quiet))
    attachments.check(attached, words, config.limits.body_mb << 20)
    given = input_of(words, [one.image for one in attached])
    options = run_options.read(args, config)
    screen: Screen = JsonScreen() if args.json else Plain(answerable=options.answerable)
    if args.quiet and not args.json:  # a question would be more than the answer
        options, screen = replace(options, answerable=False), Quiet()
    return anyio.run(_run, config, options, given, screen)


async def settled(client: Client, options: RunOptions) -> RunOptions:
    """Resolve the session to continue in."""
    if options.session_id:
        await latest.check_own(client, options.session_id)
    if not options.goes_on:
        return options
    return options.within((await latest.latest(client, options.workspace)).session_id)


def _words(words: list[str], *, needed: bool, quiet: bool) -> str:
    """Return the task: the arguments, then the text from the pipe."""
    said = " ".join(w for w in words if w != "-")
    # Arguments that are no UTF-8 come as lone surrogates, which no JSON may hold.
    said = said.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    piped = sys.stdin is not None and not sys.stdin.isatty()
    context = _read_stdin(waiting=bool(said) and not quiet) if "-" in words or piped else ""
    text = "\n\n".join(part for part in (said, context) if part.strip())
    if needed and not text:
        raise Exit(Code.USAGE, NO_MESSAGE)
    return text


def _read_stdin(*, waiting: bool) -> str:
    if waiting and not select.select([sys.stdin], [], [], 1.0)[0]:
        print("… reading stdin to its end (add < /dev/null if there is no input)", file=sys.stderr)
    return sys.stdin.buffer.read().decode("utf-8", "replace").rstrip("\n")


async def _run(config: Config, given: RunOptions, said: Input, screen: Screen) -> int:
    async with connect(config, screen.note) as client:
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            options = await settled(client, given)
            sending = partial(submit, client, options, said, screen)
            run_id = await unless_interrupted(signals, sending, times=2)
            if run_id is None:
                raise Exit(Code.INTERRUPTED, "interrupted; the run may have been accepted")
            await tell_model(client, run_id, options, screen)
            code = await follow(client, run_id, screen, signals)
            if client.is_owner:
                tell_running(await _left(client, run_id), screen)
            return code


async def _left(client: Client, run_id: str) -> News:
    """Read the events of a finished run's session from the beginning of the run."""
    run = await client.status(run_id)
    news = News(client, run.session_id, await client.first(run_id) - 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(news.listen)
        await news.catch_up([run])
        tasks.cancel_scope.cancel()
    return news


def tell_running(news: News, screen: Screen) -> bool:
    """List the background processes that end with this process; return True if there are any."""
    if news.running:
        rows = "".join(f"\n  {name}: {command}" for name, command in news.running.items())
        screen.note(
            f"{notes.PROCESSES_END}{rows}\n"
            "  to keep them running, start a gateway first: holdfast gateway run"
        )
    return bool(news.running)


async def submit(client: Client, options: RunOptions, said: Input, screen: Screen) -> str:
    """Submit the message; return the id of its run."""
    if options.model:
        if not await served_model(client):
            await client.runs()  # from here on there is a server, if only this process
        await check_model(client, options)
    try:
        return await client.submit(options.request(said))
    except WorkspaceFixed as refusal:
        if options.insists:
            raise
        screen.note(f"not here: {refusal}")
        return await client.submit(replace(options, workspace="").request(said))


async def tell_model(client: Client, run_id: str, options: RunOptions, screen: Screen) -> None:
    """Note an unexpected model, or that none is configured."""
    used, expected = (await client.status(run_id)).model, options.expected
    if expected and used != expected:
        screen.note(notes.other_model(expected, used))
    elif used.partition("/")[0] == "offline":
        screen.note(notes.no_model())
    elif used.partition("/")[0] == "builtin":
        screen.note(f"{used}, a {notes.SMALL_MODEL}")
    elif options.finds_model and (why := await _why(client, used)):
        screen.note(f"model {used}: {why}")


async def check_model(client: Client, options: RunOptions) -> None:
    """Raise `Exit` if the server does not have the requested model."""
    served = await _served(client)
    providers = {name.partition("/")[0] for name in served if "/" in name}
    wanted = options.model
    if wanted and served and wanted not in served and wanted.partition("/")[0] not in providers:
        raise Exit(
            Code.USAGE,
            f"the server of this home uses {served[0]}, not {wanted}: "
            "leave --model out, or stop that server first",
        )


async def served_model(client: Client) -> str:
    """Return the model of the server of this home; empty if no server answers."""
    return next(iter(await _served(client)), "")


async def _served(client: Client) -> list[str]:
    """Return the models of the server of this home, the main one first; none: no server answers."""
    try:
        async with client.http.get("/v1/models", timeout=_ASK) as response:
            models = msgspec.json.decode(await response.read(), type=ModelList).data
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
        return []
    return [model.id for model in models]


async def model_in_use(client: Client, config: Config) -> str:
    """Return the model of the server of this home, which may be this process."""
    served = await served_model(client)
    if not served and config.is_open:
        await client.runs(limit=1)  # this process serves from here on, with the model it finds
        served = await served_model(client)
    return served or config.model


async def _why(client: Client, model: str) -> str:
    """Return why the server uses this model; empty: it does not say, or uses another."""
    try:
        async with client.http.get("/health/detailed", timeout=_ASK) as response:
            health = msgspec.json.decode(await response.read(), type=HealthDetails)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
        return ""
    return health.model_reason if health.model == model else ""


async def follow(
    client: Client,
    run_id: str,
    screen: Screen,
    signals: Signals,
    keep: ask.Keep | None = None,
) -> Code:
    """Show the run to its end and ask its questions and those of its children; Ctrl-C stops it.

    `keep` takes an answer that came too late for its question.
    """
    stopped = anyio.Event()
    ending: Event | None = None
    questions: ask.LineQuestions | None = None
    if isinstance(screen, Plain) and ask.at_terminal():
        questions = ask.LineQuestions(client, screen, keep)
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
                    hear_children(client, frame.event, questions.hear, tasks)
                ending = frame.event
        tasks.cancel_scope.cancel()
    return _code(ending, stopped=stopped.is_set())


async def _tell_if_held(client: Client, run_id: str, screen: Screen) -> None:
    """Note that work is paused, and why; if stderr is not a terminal, end instead of waiting."""
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
    questions: ask.LineQuestions | None,
    signals: Signals,
    stopped: anyio.Event,
) -> None:
    async with anyio.create_task_group() as tasks:
        async for _ in signals:
            if stopped.is_set():
                screen.note(f"left run {run_id}; to see how it ends: holdfast runs {run_id}")
                sys.stdout.flush()
                os._exit(Code.INTERRUPTED)  # at once: a hanging step must not delay it
            stopped.set()
            if questions is not None:
                questions.leave()
            screen.note("stopping … (Ctrl-C again leaves at once)")
            tasks.start_soon(_stop, client, run_id)


async def _stop(client: Client, run_id: str) -> None:
    try:
        await client.stop(run_id)
    except NotFound:
        pass  # it has ended; `follow` shows its end


def _code(ending: Event | None, *, stopped: bool) -> Code:
    match ending:
        case Event(event="run.completed"):
            return Code.OK
        case Event(event="run.cancelled") if stopped:
            return Code.INTERRUPTED
        case Event(event="run.failed", code="model_rejected"):
            return Code.REJECTED
        case Event(event="run.failed", code="model_unavailable"):
            return Code.TRY_AGAIN
        case _:
            return Code.FAILED


async def unless_interrupted(
    signals: Signals, work: Callable[[], Awaitable[T]], times: int = 1
) -> T | None:
    """Return the result of `work`, or None if Ctrl-C comes so many times before.

    A Ctrl-C that does not end it is for the next step.
    """
    result: T | None = None
    heard = 0
    async with anyio.create_task_group() as tasks:

        async def listen() -> None:
            nonlocal heard
            async for _ in signals:
                heard += 1
                if heard == times:
                    tasks.cancel_scope.cancel()

        tasks.start_soon(listen)
        result = await work()
        tasks.cancel_scope.cancel()
    if result is not None and heard:
        signal.raise_signal(signal.SIGINT)
    return result
