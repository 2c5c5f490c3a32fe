"""A process whose wall clock a test can set: `python stepped.py FILE python -m holdfast …`.

FILE holds, as text, by how many seconds the wall clock is off. Only `time.time` is changed, which
is all of Holdfast's wall clock; the time since boot goes on as it is, as on a machine whose
clock somebody sets. `Wall` is the test's end of it.
"""

import runpy
import sys
import time
from pathlib import Path


class Wall:
    """The wall clock of processes that are started under `wrapper`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.wrapper = (sys.executable, __file__, str(file))
        self.off_by_s = 0.0
        self.step(0.0)

    def step(self, seconds: float) -> None:
        """Set the clock ahead, or back."""
        self.off_by_s += seconds
        new = self._file.with_suffix(".new")
        new.write_text(str(self.off_by_s))
        new.replace(self._file)


def _main() -> None:
    file = Path(sys.argv[1])
    module = sys.argv.index("-m")
    sys.argv = sys.argv[module + 1 :]
    sys.path[0] = ""
    real = time.time

    def stepped() -> float:
        return real() + float(file.read_text())

    time.time = stepped
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
