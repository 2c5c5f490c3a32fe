"""`holdfast pair CODE`: let in whoever was shown that code in a chat, with the roles it gives.

Who it is is shown first, and asked about at a terminal. The platform vouches for the id; the
name is what they call themselves.
"""

import argparse
import sys
import termios
from contextlib import suppress

import anyio

from holdfast.cli import operator, question
from holdfast.cli.exits import Code, Exit
from holdfast.cli.operator import Person
from holdfast.config import Config
from holdfast.core.approval import Role

_CONFIRM = "to let them in without being asked: --yes"


def main(args: argparse.Namespace) -> int:
    """Look, ask, confirm."""
    roles = _roles(args.roles)
    return anyio.run(_pair, operator.load(), args.code, roles, args.yes)


def _roles(said: str) -> list[str]:
    roles = [role for word in said.split(",") if (role := word.strip())]
    known = ", ".join(Role)
    for role in roles:
        if role not in frozenset(Role):
            raise Exit(Code.USAGE, f"there is no role {role}; there are {known}")
    if not roles:
        raise Exit(Code.USAGE, f"--roles names none; there are {known}")
    return list(dict.fromkeys(roles))


async def _pair(config: Config, code: str, roles: list[str], yes: bool) -> int:  # noqa: FBT001  the flag as it was given
    asked = {"code": code}
    found = await operator.ask(config, "POST", "/v1/pairing/look-up", Person, asked)
    print(f"{described(found)}\nroles     {', '.join(roles)}", flush=True)
    if not yes and not _confirmed():
        raise Exit(Code.FAILED, "nobody was let in")
    body = {**asked, "roles": roles}
    await operator.ask(config, "POST", "/v1/pairing", Person, body)
    print(f"{shown(found)} is let in; to take it back: holdfast users remove {shown(found)}")
    return Code.OK


def described(person: Person) -> str:
    """Who it is, as far as anybody knows."""
    name = question.visible(person.name) or "none"
    return (
        f"platform  {question.visible(person.platform)}\n"
        f"id        {question.visible(person.user)}\n"
        f"name      {name}  (what they call themselves; nobody has checked it)"
    )


def shown(person: Person) -> str:
    """What they go by here."""
    return question.visible(f"{person.platform}:{person.user}")


def _confirmed() -> bool:
    """Ask, where somebody is there to be asked. What was typed before is no answer."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Exit(Code.USAGE, f"nobody is there to confirm it; {_CONFIRM}")
    with suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    print("Let them in with these roles? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
