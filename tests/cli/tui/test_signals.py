"""However the terminal's process is told to go, the terminal itself is given back as it was."""

import signal
import termios
from pathlib import Path

import pytest

from tests.cli import Place, terminal

pytestmark = pytest.mark.anyio

LOCAL_FLAGS = 3  # where termios keeps them


def _is_usable(keyboard: int) -> bool:
    wanted = termios.ICANON | termios.ECHO | termios.ISIG
    return bool(termios.tcgetattr(keyboard)[LOCAL_FLAGS] & wanted == wanted)


@pytest.mark.promise("HALT-05")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_leaves_the_terminal_as_it_was(
    tmp_path: Path, number: signal.Signals
) -> None:
    place = Place(tmp_path)
    place.environ["TERM"] = "xterm-256color"
    async with terminal(place) as screen:
        await screen.read_until("/help lists keys")
        assert not _is_usable(screen.keyboard), "there is no prompt yet"
        screen.process.send_signal(number)
        assert await screen.process.wait() == 0
        assert _is_usable(screen.keyboard)


async def test_a_fresh_session_after_an_earlier_one_works_where_one_stands(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.environ["TERM"] = "xterm-256color"
    await place.holdfast("run", "list the files here")
    (place.work / "kingfisher.txt").write_text("")
    async with terminal(place, "--continue") as screen:
        await screen.read_until("(empty directory)")
        await screen.type("/new\r")
        await screen.read_until("This is a new session")
        await screen.type("list the files here\r")
        await screen.read_until("kingfisher.txt")
