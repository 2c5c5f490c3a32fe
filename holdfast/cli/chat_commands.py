"""What can be said of chats on the command line: channels, pair, users."""

import argparse

_CHANNELS = """Each channel that is set up: whether it is on, what is wrong with it, what it can do.

  holdfast channels                  all of them

A channel is set up by a table [channels.NAME] in config.toml, or, Telegram's, by nothing more
than TELEGRAM_BOT_TOKEN in the gateway's environment. It is served by a gateway.

exit codes: 0 all is well; 1 a channel that is on cannot be heard; 78 the configuration is wrong
"""
_PAIR = """Let in whoever was shown CODE in a chat.

Somebody whom the agent does not know is shown a code when they write to it. They tell it to you,
on a way by which you know them. You are shown who it is, and asked. The platform vouches for
the id; the name is what they call themselves.

A code works once, for ten minutes. Hyphens, spaces and case do not count.

roles: run (speak, and have work done), approve (answer what their own runs ask), admin (all);
read alone is not enough to speak

exit codes: 0 let in; 1 no such code, or you said no; 2 wrong usage;
75 no gateway runs, or too many codes were wrong: when to try again
"""
_USERS = """Who is let into chats, with which roles, and by what; and who waits for it.

  holdfast users                     all of them
  holdfast users remove telegram:678 shut out one who was let in by pairing, or who waits

Who is let in by the configuration is shut out there: users under [channels.NAME].
Somebody who was removed is a stranger again at once, and what waits for their answer stays.

exit codes: 0 done; 1 there is no such user; 2 wrong usage; 75 no gateway runs
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add them to what can be said."""
    text, unsaid = argparse.RawDescriptionHelpFormatter, argparse.SUPPRESS

    def command(name: str, short: str, about: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=short, description=about, formatter_class=text)
        one.set_defaults(handler=f"holdfast.cli.{name}", parser=one)
        return one

    channels = command("channels", "the chat channels, and how each is doing", _CHANNELS)
    channels.add_argument("--json", action="store_true", default=unsaid, help="for programs")
    pair = command("pair", "let in whoever was shown a code in a chat", _PAIR)
    pair.add_argument("code", metavar="CODE")
    some = "what they may do (default run,approve)"
    pair.add_argument("--roles", metavar="ROLES", default="run,approve", help=some)
    pair.add_argument("--yes", action="store_true", default=unsaid, help="do not ask: for scripts")
    users = command("users", "who is let into chats; shut one out", _USERS)
    users.set_defaults(what="list")
    users.add_argument("--json", action="store_true", default=unsaid, help="for programs")
    said = users.add_subparsers(title="commands", metavar="COMMAND")
    listing = said.add_parser("list", help="all of them (the default)")
    listing.add_argument("--json", action="store_true", default=unsaid, help="for programs")
    listing.set_defaults(parser=listing)
    remove = said.add_parser("remove", help="shut one out")
    remove.add_argument("user", metavar="USER", help="as the list has it: telegram:678")
    remove.set_defaults(parser=remove, what="remove")
