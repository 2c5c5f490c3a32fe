"""`holdfast approvals`: all that waits for an approval; and the answers to it.

To approve takes an id: nobody should let run what they have not looked at. An answer goes
to whoever owns the home. If that is nobody, the run goes on in this process, so we stay
with it to its end.

`holdfast approvals rules`: what `always` answers have permitted for good; `revoke` takes one back.
"""

import argparse
import signal
from collections.abc import Callable

import anyio
import msgspec

from holdfast.cli import question, run
from holdfast.cli.client import Client, connect
from holdfast.cli.exits import Code, Exit
from holdfast.cli.screen import Plain, Screen
from holdfast.cli.wire import Approval, NotFound, Rule, TooLate
from holdfast.config import Config

_PREFIX = "apr_"  # every request's; it says nothing about which
_SEE = "see what waits: holdfast approvals"
_SEE_RULES = "see what is: holdfast approvals rules"


def main(args: argparse.Namespace) -> int:
    """List, or answer."""
    config = run.load(args)
    if args.what == "list":
        return anyio.run(_list, config, _encoded if args.json else _shown)
    if args.what == "rules":
        return anyio.run(_rules, config, _encoded if args.json else _named)
    if args.what == "revoke":
        return anyio.run(_revoke, config, args.name)
    named = (args.request_id or "").removeprefix(_PREFIX)
    if args.what == "approve" and not named:
        raise Exit(Code.USAGE, f"say which: holdfast approvals approve ID; {_SEE}")
    return anyio.run(_answer, config, named, args.choice)


async def _list(config: Config, show: Callable[[Approval], str]) -> int:
    async with connect(config, Plain().note) as client:
        waiting = await client.approvals()
    for asked in waiting:
        print(show(asked))
    if not waiting and show is _shown:
        print("Nothing waits.")
    return Code.OK


def _encoded(asked: Approval | Rule) -> str:
    return msgspec.json.encode(asked).decode()


def _shown(asked: Approval) -> str:
    head = f"{asked.request_id}  {question.expires(asked)}  {asked.run_id}"
    head += f"  of {question.visible(asked.owner)}" if asked.owner else ""
    return f"{head}\n{question.body(asked)}\n  choices: {', '.join(asked.choices)}"


async def _answer(config: Config, named: str, choice: str) -> int:
    screen = Plain()
    async with connect(config, screen.note) as client:
        asked = _find(await client.approvals(), named)
        try:
            given = await client.answer(asked, choice)
        except TooLate:
            raise Exit(Code.FAILED, _gone(asked.request_id)) from None
        print(f"{asked.request_id} {question.answered(given.choice)}", flush=True)
        if given.note:
            screen.note(given.note)
        if client.is_owner:
            await _stay(client, asked.run_id, screen)
    return Code.OK


def _find(waiting: tuple[Approval, ...], named: str) -> Approval:
    """The request that is meant; without a name the only one there is."""
    match [a for a in waiting if a.request_id.removeprefix(_PREFIX).startswith(named)]:
        case [asked]:
            return asked
        case []:
            raise Exit(Code.FAILED, _gone(_PREFIX + named) if named else "nothing waits")
        case several:
            those = ", ".join(a.request_id for a in several)
            raise Exit(Code.USAGE, f"say which of {len(several)}: {those}")


def _gone(named: str) -> str:
    return f"nothing waits under {named}: it was answered, ran out or never was; {_SEE}"


async def _stay(client: Client, run_id: str, screen: Screen) -> None:
    """Nobody else would go on with the run: do not leave before its end."""
    screen.note(f"nobody else serves the home: run {run_id} goes on here, to its end")
    with anyio.open_signal_receiver(signal.SIGINT) as signals:
        await run.follow(client, run_id, screen, signals)


async def _rules(config: Config, show: Callable[[Rule], str]) -> int:
    async with connect(config, Plain().note) as client:
        rules = await client.rules()
    for rule in rules:
        print(show(rule))
    if not rules and show is _named:
        print("Nothing is permitted for good.")
    return Code.OK


def _named(rule: Rule) -> str:
    return f"{rule.name}  {question.visible(rule.rule)}"


async def _revoke(config: Config, name: str) -> int:
    async with connect(config, Plain().note) as client:
        rule = _find_rule(await client.rules(), name)
        try:
            await client.revoke(rule)
        except NotFound:
            raise Exit(Code.FAILED, _no_rule(rule.name)) from None
    print(f"revoked: {_named(rule)}")
    return Code.OK


def _find_rule(rules: tuple[Rule, ...], name: str) -> Rule:
    """The permission that is meant, by its name or the beginning of it."""
    match [rule for rule in rules if rule.name.startswith(name)]:
        case [rule]:
            return rule
        case []:
            raise Exit(Code.FAILED, _no_rule(name))
        case several:
            raise Exit(
                Code.USAGE, f"say which of {len(several)}: {', '.join(r.name for r in several)}"
            )


def _no_rule(name: str) -> str:
    return f"nothing is permitted for good under {name}; {_SEE_RULES}"
