"""A stand-in for the gateway, to be killed: reads an `Order` as JSON per line, answers a line.

`python -m tests.tools.keeper FOLDER loop|thread`. The answer is the pid it started, or what was
raised. Holds a lock meanwhile. With `thread` each start is made by a thread that then ends.
"""

import fcntl
import os
import sys
import threading
import time
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from holdfast.errors import HoldfastError
from holdfast.tools.exec.spawn import Execution, Spawner


class Order(msgspec.Struct):
    call_id: str
    execution: Execution
    label: str = ""


async def note(answers: list[str], spawner: Spawner, order: Order) -> None:
    try:
        started = await spawner.start(order.call_id, order.execution, label=order.label)
        answers.append(str(started.pid))
    except HoldfastError as error:
        answers.append(type(error).__name__)


async def main(folder: Path, where: str) -> None:
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    spawner = Spawner(folder / "calls", os.getpid(), time.time)
    answers: list[str] = []
    while line := await anyio.to_thread.run_sync(sys.stdin.readline):
        order = msgspec.json.decode(line, type=Order)
        if where == "thread":
            thread = threading.Thread(target=anyio.run, args=(note, answers, spawner, order))
            thread.start()
            thread.join()
        else:
            await note(answers, spawner, order)
        sys.stdout.write(answers[-1] + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2])
