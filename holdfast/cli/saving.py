"""Write a file that the user asked for: private, and completely or not at all."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from holdfast.cli.exits import Code, Exit


def save(file: Path, text: str, *, force: bool = False, hint: str = "") -> None:
    """Write the file. An existing one is replaced only with `force`; `hint` names that option.

    Raises `Exit`.
    """
    try:
        (_replace if force else _create)(file, text.encode())
    except FileExistsError:
        raise Exit(Code.FAILED, f"{file} exists{hint}") from None
    except OSError as error:
        raise Exit(Code.OUTPUT, f"cannot write {file}: {error.strerror}") from None


def _create(file: Path, content: bytes) -> None:
    """Write a file that must not exist; remove it if that fails."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as opened:
            opened.write(content)
    except OSError:
        with suppress(OSError):
            file.unlink()
        raise


def _replace(file: Path, content: bytes) -> None:
    """Write a file, and replace an existing one."""
    if file.is_dir():
        raise IsADirectoryError(0, "it is a directory")
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".holdfast-") as beside:
        made = Path(beside, "export")
        _create(made, content)
        made.replace(file)
