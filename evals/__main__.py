"""Run the tasks with the configured model, and print score, time and tokens.

The engine, the tools and the sandbox are the real ones, in a home and a folder that are removed
afterwards. A person would answer approvals; here every one is answered with "once".
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import msgspec

from evals.tasks import Task, load
from holdfast.api.schema.events import TERMINAL
from holdfast.api.schema.runs import RunObject, RunRequest
from holdfast.cli.client import operator
from holdfast.cli.client.client import Client, connect
from holdfast.cli.client.frames import approval_of
from holdfast.config.settings import Config

TASK_S = 300.0  # time limit for one task


class Score(msgspec.Struct, frozen=True):
    """How one task went."""

    task: Task
    problems: tuple[str, ...]
    seconds: float
    first_s: float  # until the first event of the model
    tokens_in: int
    tokens_out: int
    answer: str
    calls: tuple[str, ...]


def main(argv: Sequence[str]) -> int:
    """Run the chosen tasks; the exit code is 0 if enough of them were done."""
    parser = argparse.ArgumentParser(prog="python -m evals", description=__doc__)
    parser.add_argument("--model", help="provider/name; else the configured one")
    parser.add_argument("--only", metavar="TEXT", default="", help="tasks with this in their id")
    parser.add_argument("--tuning", action="store_true", help="only tasks that are not held out")
    parser.add_argument("--held-out", action="store_true", help="only those that are")
    parser.add_argument("--least", type=float, default=0, help="percent that must be done")
    parser.add_argument("--verbose", action="store_true", help="print calls and answers")
    args = parser.parse_args(argv)
    tasks = [
        task
        for task in load()
        if any(part in task.id for part in args.only.split(","))
        and not (args.tuning and task.held_out)
        and not (args.held_out and not task.held_out)
    ]
    config = operator.load({"model": args.model})
    print(f"{len(tasks)} tasks with {config.model} ({config.model_reason})", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-eval-") as scratch:
        scores = anyio.run(_all, config, tasks, Path(scratch), args.verbose)
    return _conclude(scores, args.least)


async def _all(config: Config, tasks: list[Task], scratch: Path, tell: bool) -> list[Score]:
    home = scratch / "home"
    home.mkdir(mode=0o700)
    (home / "models").symlink_to(config.home / "models")
    scores = []
    async with connect(replace(config, home=home), _note, linger_s=0.0) as client:
        for number, task in enumerate(tasks):
            folder = scratch / f"task{number}"
            folder.mkdir()
            task.prepare(folder)
            scores.append(score := await _one(client, task, folder))
            mark = "ok  " if not score.problems else "FAIL"
            why = "; ".join(score.problems)
            print(f"{mark} {task.id:24} {score.seconds:5.1f} s  {why}", flush=True)
            if tell or score.problems:
                print(
                    f"       calls {' | '.join(score.calls)}\n       answer {score.answer[:300]!r}"
                )
    return scores


async def _one(client: Client, task: Task, folder: Path) -> Score:
    began = time.monotonic()
    first: float | None = None
    calls: list[str] = []
    run_id = await client.submit(RunRequest(task.ask, workspace=str(folder)))
    with anyio.move_on_after(TASK_S) as limit:
        async for frame in client.follow(run_id):
            event = frame.event
            if event.event in ("message.delta", "tool.started") and first is None:
                first = time.monotonic() - began
            if event.event == "tool.started":
                calls.append(f"{event.tool} {event.preview}")
            if event.event == "approval.request":
                await client.answer(approval_of(event), "once")
            if event.event in TERMINAL:
                break
    if limit.cancelled_caught:
        await client.stop(run_id)
    run = await client.status(run_id)
    answer = run.output if isinstance(run.output, str) else ""
    problems = tuple(task.problems(folder, answer))
    if run.status != "completed":
        problems = (f"the run is {run.status}: {run.failure}", *problems)
    return _score(task, problems, time.monotonic() - began, first, run, answer, calls)


def _score(
    task: Task,
    problems: tuple[str, ...],
    seconds: float,
    first: float | None,
    run: RunObject,
    answer: str,
    calls: list[str],
) -> Score:
    used = run.usage
    return Score(
        task,
        problems,
        seconds,
        seconds if first is None else first,
        used.input_tokens if used else 0,
        used.output_tokens if used else 0,
        answer,
        tuple(calls),
    )


def _conclude(scores: list[Score], least: float) -> int:
    for name, group in (
        ("tuning", [s for s in scores if not s.task.held_out]),
        ("held out", [s for s in scores if s.task.held_out]),
        ("all", scores),
    ):
        if group:
            done = sum(not s.problems for s in group)
            print(
                f"{name:9} {done} of {len(group)} ({_percent(group):.0f} %)  "
                f"{sum(s.seconds for s in group):.0f} s  "
                f"{sum(s.tokens_in for s in group)} tokens in, "
                f"{sum(s.tokens_out for s in group)} out"
            )
    if scores:
        print(f"first answer after {scores[0].first_s:.1f} s, with the model's start")
    return 0 if _percent(scores) >= least else 1


def _percent(scores: list[Score]) -> float:
    return 100 * sum(not s.problems for s in scores) / max(1, len(scores))


def _note(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
