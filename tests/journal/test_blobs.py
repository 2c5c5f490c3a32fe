"""Blobs are kept under the hash of what they hold."""

import hashlib
import stat
from pathlib import Path

import pytest

from holdfast.journal.blobs import Blobs
from holdfast.tools.tool import BlobStore


def test_a_blob_is_found_by_its_hash(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    store: BlobStore = blobs
    name = store.put(b"former\x00text")
    assert name == hashlib.sha256(b"former\x00text").hexdigest()
    assert blobs.get(name) == b"former\x00text"
    assert Blobs(tmp_path).path(name) == tmp_path / "blobs" / name


def test_only_the_owner_can_read_them(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir(mode=0o755)
    blobs = Blobs(tmp_path)
    name = blobs.put(b"secret")
    assert stat.S_IMODE((tmp_path / "blobs").stat().st_mode) == 0o700
    assert stat.S_IMODE(blobs.path(name).stat().st_mode) == 0o600


def test_the_same_content_is_written_once_and_leaves_nothing_else(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    name = blobs.put(b"same")
    first = blobs.path(name).stat()
    assert blobs.put(b"same") == name
    assert blobs.path(name).stat().st_ino == first.st_ino
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == [name]


@pytest.mark.parametrize("name", ["", "../config.toml", "0" * 63, "G" * 64, "0" * 64 + "\n", "/x"])
def test_an_invalid_hash_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    blobs = Blobs(tmp_path)
    with pytest.raises(KeyError):
        blobs.path(name)
    with pytest.raises(KeyError):
        blobs.get(name)


def test_an_unknown_hash_is_a_key_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        Blobs(tmp_path).get("0" * 64)
