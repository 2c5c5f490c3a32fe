"""`holdfast pair CODE`: let in the person who was shown that code in a chat.

The command shows who it is and asks for confirmation. The platform guarantees the id; the name is
what the person calls themselves.
"""

import argparse
import sys
import termios
from contextlib import suppress

import anyio

from holdfast.api.schema.operator import PairingCodeRequest, PairRequest, UserObject
from holdfast.cli.client import operator
from holdfast.cli.exits import Code, Exit
from holdfast.config.settings import Config
from holdfast.core.approval.approval import Role
from holdfast.core.text.escape import reveal

UNVERIFIED = "(what they call themselves; not verified)"
NOT_PAIRED = "not confirmed: the person was not let in"
LET_IN = "{user} is let in; to undo: holdfast users remove {user}"
NO_TERMINAL = (
    "cannot ask for confirmation: stdin is not a terminal; pass --yes to skip the question"
)


def main(args: argparse.Namespace) -> int:
    """Look, ask, confirm."""
    return anyio.run(_pair, operator.load(), args, _roles(args.roles))


def _roles(given: str) -> list[str]:
    roles = [role for word in given.split(",") if (role := word.strip())]
    known = ", ".join(Role)
    for role in roles:
        if role not in frozenset(Role):
            raise Exit(Code.USAGE, f"there is no role {role}; the roles are {known}")
    if not roles:
        raise Exit(Code.USAGE, f"--roles is empty; the roles are {known}")
    return list(dict.fromkeys(roles))


async def _pair(config: Config, args: argparse.Namespace, roles: list[str]) -> int:
    asked = PairingCodeRequest(args.code)
    found = await operator.ask(config, "POST", "/v1/pairing/look-up", UserObject, asked)
    print(f"{described(found)}\nroles     {', '.join(roles)}", flush=True)
    if not args.yes and not _confirmed():
        raise Exit(Code.FAILED, NOT_PAIRED)
    body = PairRequest(args.code, tuple(roles))
    await operator.ask(config, "POST", "/v1/pairing", UserObject, body)
    print(LET_IN.format(user=shown(found)))
    return Code.OK


def described(person: UserObject) -> str:
    """Describe a person: platform, id and the name they chose."""
    name = reveal(person.name) or "none"
    return (
        f"platform  {reveal(person.platform)}\n"
        f"id        {reveal(person.user)}\n"
        f"name      {name}  {UNVERIFIED}"
    )


def shown(person: UserObject) -> str:
    """Return the person as `users` names them: platform:id."""
    return reveal(f"{person.platform}:{person.user}")


def _confirmed() -> bool:
    """Ask for confirmation on the terminal. Input typed before the question does not count."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Exit(Code.USAGE, NO_TERMINAL)
    with suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    print("Let them in with these roles? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
