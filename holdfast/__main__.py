"""`python -m holdfast`, and the `holdfast` command.

The fast path: `--version` costs hardly more than the interpreter itself, so nothing
is imported up here but sys.
"""

import sys

from holdfast import __version__


def main() -> int:
    """Run the command line; returns the exit code."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        sys.stdout.write(f"holdfast {__version__}\n")
        return 0
    if sys.argv[1:3] == ["gateway", "run"]:
        from holdfast.host import signals  # noqa: PLC0415  start-up budget

        signals.end_at_once()
    from holdfast.cli import main as command  # noqa: PLC0415  start-up budget

    return command.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
