"""What can be said to get started, and where something is amiss: setup, doctor, config, completion."""

import argparse

from holdfast.cli import about

_UNSAID = argparse.SUPPRESS  # a command's default must not undo what was said before it


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add all of them to the command line."""
    _add_setup(commands)
    doctor = described(commands, "doctor", "what is set, what works, what to do next", about.DOCTOR)
    doctor.add_argument("--fix", action="store_true", help="mend first what can be mended")
    doctor.add_argument("--json", action="store_true", default=_UNSAID, help="for programs")
    doctor.set_defaults(handler="holdfast.cli.doctor", parser=doctor)
    settings = described(commands, "config", "every setting, and where it comes from", about.CONFIG)
    what = "show: every setting (the default); path: where the file with them is"
    settings.add_argument("what", nargs="?", choices=["show", "path"], default="show", help=what)
    settings.add_argument("--json", action="store_true", default=_UNSAID, help="for programs")
    settings.set_defaults(handler="holdfast.cli.settings", parser=settings)
    completion = described(
        commands, "completion", "have the shell complete what can be said here", about.COMPLETION
    )
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    completion.set_defaults(handler="holdfast.cli.completing", parser=completion)


def _add_setup(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    setup = described(commands, "setup", "find a model, try it, and write it down", about.SETUP)
    setup.add_argument("--model", metavar="M", default=_UNSAID, help="its name there")
    setup.add_argument("--base-url", metavar="URL", help="the server; no other is looked for")
    setup.add_argument("--yes", action="store_true", default=_UNSAID, help="ask nothing")
    saving = "write the key to the file, too, for you alone to read"
    setup.add_argument("--save-key", action="store_true", help=saving)
    ports = "where to look on this machine, like 11434,1234"
    setup.add_argument("--ports", metavar="LIST", help=ports)
    setup.add_argument("--json", action="store_true", default=_UNSAID, help="for programs")
    setup.set_defaults(handler="holdfast.cli.setup", parser=setup)


def described(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    short: str,
    text: str,
) -> argparse.ArgumentParser:
    """A command that says at length what it is for."""
    return commands.add_parser(
        name,
        help=short,
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
