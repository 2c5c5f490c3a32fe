"""`holdfast approvals`: list approval requests and answer them; list, add and revoke permissions.

`approve` needs an id, so that a person looks at a request before it runs. If no gateway runs,
the run continues in this process, and the command follows it to its end.
"""

import argparse
import signal

import anyio

from holdfast.api.schema.approvals import ApprovalObject, RuleObject
from holdfast.cli import output
from holdfast.cli.client import connected
from holdfast.cli.client.client import Client
from holdfast.cli.client.refusals import NotFound, TooLateExit
from holdfast.cli.exits import Code, Exit
from holdfast.cli.run import approval, run
from holdfast.cli.run.screen import Plain
from holdfast.core.text.escape import reveal

NOTHING_WAITS = "No request waits."
NO_PERMISSIONS = "No permissions."
CONTINUES_HERE = "no gateway runs: run {run_id} continues here, to its end"
_PREFIX = "apr_"  # of every request id
_LIST = "list them: holdfast approvals"


def main(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    if args.what == "approve" and not (args.request_id or "").removeprefix(_PREFIX):
        raise Exit(Code.USAGE, f"the ID is missing: holdfast approvals approve ID; {_LIST}")
    if args.what == "allow" and not args.list and not args.pattern:
        raise Exit(Code.USAGE, "the PATTERN is missing, as in: holdfast approvals allow 'pytest *'")
    actions = {"list": _list, "rules": _rules, "allow": _allow, "revoke": _revoke}
    return connected.run(args, actions.get(args.what, _answer))


async def _list(client: Client, args: argparse.Namespace) -> int:
    encode = output.all_fields if args.json else None
    output.print_each(await client.approvals(), _shown, NOTHING_WAITS, encode)
    return Code.OK


def _shown(asked: ApprovalObject) -> str:
    head = f"{asked.request_id}  {approval.expires(asked)}  {asked.run_id}"
    head += f"  of {reveal(asked.owner)}" if asked.owner else ""
    return f"{head}\n{approval.body(asked)}\n  choices: {', '.join(asked.choices)}"


async def _answer(client: Client, args: argparse.Namespace) -> int:
    named, waiting = (args.request_id or "").removeprefix(_PREFIX), await client.approvals()
    none = _gone(_PREFIX + named) if named else "no request waits"
    asked = output.only(waiting, lambda a: a.request_id, _PREFIX + named, "requests", none)
    try:
        given = await client.answer(asked, args.choice, getattr(args, "because", ""))
    except TooLateExit:
        raise Exit(Code.FAILED, _gone(asked.request_id)) from None
    print(f"{asked.request_id} {approval.answered(given.choice)}", flush=True)
    if given.note:
        output.note(given.note)
    if client.is_owner:  # no other process would continue the run
        output.note(CONTINUES_HERE.format(run_id=asked.run_id))
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            await run.follow(client, asked.run_id, Plain(), signals)
    return Code.OK


def _gone(named: str) -> str:
    return f"no request {named} waits: it was answered, has expired or never existed; {_LIST}"


async def _rules(client: Client, args: argparse.Namespace) -> int:
    encode = output.all_fields if args.json else None
    output.print_each(await client.rules(), _named, NO_PERMISSIONS, encode)
    return Code.OK


async def _allow(client: Client, args: argparse.Namespace) -> int:
    if args.list:
        return await _rules(client, args)
    print(f"permitted: {_named(await client.allow(args.pattern))}")
    return Code.OK


def _named(rule: RuleObject) -> str:
    return f"{rule.name}  {reveal(rule.rule)}"


async def _revoke(client: Client, args: argparse.Namespace) -> int:
    none = f"there is no permission {args.name}; {_LIST} rules"
    rule = output.only(await client.rules(), lambda r: r.name, args.name, "permissions", none)
    try:
        await client.revoke(rule)
    except NotFound:
        raise Exit(Code.FAILED, none) from None
    print(f"revoked: {_named(rule)}")
    return Code.OK
