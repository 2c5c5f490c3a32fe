"""The audit: what was acknowledged is there, in order and unchanged, or it is said where not."""

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.redaction import REDACTED, Redactor
from holdfast.errors import JournalUnavailable
from holdfast.journal.audit import GAP, GENESIS, TORN, Audit, AuditEntry, read, verify

ENTRY = AuditEntry(
    kind="approval.granted",
    who="operator",
    platform="cli",
    run_id="run_1",
    call_id="c1",
    request_id="req_1",
    execution="ab" * 32,
    rule="git status",
    choice="once",
    posture="L2",
    result="ok",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@contextmanager
def opened(path: Path, *secrets: str) -> Iterator[Audit]:
    audit = Audit(path, lambda: 1_700_000_000.25, Redactor(secrets))
    try:
        yield audit
    finally:
        audit.close()


def write(path: Path, count: int, *, run_id: str = "run_1") -> None:
    with opened(path) as audit:
        for n in range(count):
            audit.append(AuditEntry(kind="call.started", run_id=run_id, call_id=f"c{n}"))


def head_of(path: Path) -> Path:
    return path.with_suffix(".head")


def test_an_entry_is_a_line_with_everything_in_it_and_the_hash_of_the_last(path: Path) -> None:
    with opened(path) as audit:
        audit.append(ENTRY)
        audit.append(ENTRY)
    first, second = map(msgspec.json.decode, path.read_bytes().splitlines())
    given = msgspec.to_builtins(ENTRY)
    assert first.items() >= given.items()
    assert first.keys() - given.keys() == {"n", "at", "prev", "hash"}
    assert (first["n"], first["at"], first["prev"]) == (1, 1_700_000_000.25, GENESIS)
    assert (second["n"], second["prev"]) == (2, first["hash"])
    assert verify(path).last == second["hash"]


def test_the_files_are_their_owners_alone(path: Path) -> None:
    path.touch(mode=0o644)
    write(path, 1)
    assert {stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()} == {0o600}


def test_an_empty_audit_is_complete(path: Path) -> None:
    assert verify(path).why == "" and not list(read(path))
    write(path, 0)
    assert verify(path).why == "" and not list(read(path))


def test_it_goes_on_where_the_last_process_ended(path: Path) -> None:
    for _ in range(3):
        write(path, 2)
    assert (verify(path).entries, verify(path).torn, verify(path).why) == (6, 0, "")
    assert [line.n for line in read(path)] == [1, 2, 3, 4, 5, 6]


def test_entries_of_one_run_can_be_read_alone(path: Path) -> None:
    write(path, 2, run_id="run_a")
    write(path, 1, run_id="run_b")
    assert [line.n for line in read(path, "run_a")] == [1, 2]


def test_appends_from_many_threads_are_one_chain(path: Path) -> None:
    with opened(path) as audit, ThreadPoolExecutor(8) as threads:
        list(threads.map(audit.append, [ENTRY] * 100))
    assert (verify(path).entries, verify(path).why) == (100, "")


@pytest.mark.fault("F-39")
def test_no_secret_is_written_down(path: Path) -> None:
    with opened(path, "sk-canary-0001") as audit:
        audit.append(AuditEntry(kind="call.denied", result="curl -H sk-canary-0001"))
    assert b"canary" not in path.read_bytes()
    assert next(read(path)).result == f"curl -H {REDACTED}"
    assert not verify(path).why


@given(st.data())
def test_any_byte_that_was_changed_is_found_at_its_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    write(path, 4)
    whole = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    line = path.read_bytes()[:place].count(b"\n") + 1
    path.write_bytes(whole)
    found = verify(path)
    assert found.why and found.line == line
    write(path, 1)  # the next process does not make it good
    assert verify(path).why and verify(path).line == line


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_a_missing_a_moved_and_a_doubled_line_are_found(path: Path) -> None:
    write(path, 5)
    a, b, c, d, e = _lines(path)
    for lines, line in (
        ((b, c, d, e), 1),
        ((a, b, d, e), 3),
        ((a, c, b, d, e), 2),
        ((a, b, b, c, d, e), 3),
        ((a, b, c, d, e, e), 6),
    ):
        path.write_bytes(b"".join(lines))
        assert verify(path).line == line, verify(path)


@pytest.mark.parametrize("left", [0, 1, 4])
def test_a_tail_that_was_cut_off_is_found_and_stays_found(path: Path, left: int) -> None:
    write(path, 5)
    lines = _lines(path)
    for torn in (b"", lines[left][:-9]):
        path.write_bytes(b"".join(lines[:left]) + torn)
        found = verify(path)
        assert (found.entries, found.line) == (left, left + 1)
        assert f"entry {left + 1} of 5" in found.why
    write(path, 3)
    assert [line.kind for line in read(path)][left] == GAP
    assert verify(path).line >= left + 1 and verify(path).why


def test_a_file_that_is_gone_is_found(path: Path) -> None:
    write(path, 2)
    path.unlink()
    assert "entry 1 of 2" in verify(path).why
    write(path, 1)
    assert verify(path).why


def test_a_last_line_that_was_forged_with_its_hash_is_found_by_the_head(path: Path) -> None:
    write(path, 2)
    other = path.with_name("other.jsonl")
    write(other, 2)
    write(path, 1, run_id="run_2")
    write(other, 1, run_id="run_3")
    assert _lines(path)[:2] == _lines(other)[:2] and not verify(other).why
    path.write_bytes(other.read_bytes())
    assert verify(path).line == 3
    write(path, 1)
    assert verify(path).why


@pytest.mark.parametrize("head", [None, b"", b"nonsense\n"])
def test_a_head_that_is_lost_is_not_made_up(path: Path, head: bytes | None) -> None:
    write(path, 2)
    head_of(path).unlink()
    if head is not None:
        head_of(path).write_bytes(head)
    assert "head" in verify(path).why
    write(path, 1)
    assert verify(path).line == 3


def test_a_line_torn_by_a_crash_at_any_byte_is_marked_and_the_chain_goes_on(path: Path) -> None:
    write(path, 2)
    head = head_of(path).read_bytes()
    write(path, 1)
    *good, last = _lines(path)
    for size in range(1, len(last) - 1):
        path.write_bytes(b"".join(good) + last[:size])
        head_of(path).write_bytes(head)
        assert (verify(path).why, verify(path).torn) == ("", 1)  # nothing acknowledged is missing
        write(path, 2)
        assert (verify(path).entries, verify(path).torn, verify(path).why) == (5, 1, "")
        assert [line.kind for line in read(path)][2] == TORN
        assert last[:size] in path.read_bytes()


def test_a_line_that_lacks_nothing_but_its_end_is_ended(path: Path) -> None:
    write(path, 2)
    head = head_of(path).read_bytes()
    write(path, 1)
    path.write_bytes(path.read_bytes()[:-1])
    head_of(path).write_bytes(head)
    write(path, 1)
    assert (verify(path).entries, verify(path).torn, verify(path).why) == (4, 0, "")


def test_a_crash_at_any_byte_of_the_marker_is_survived_too(path: Path) -> None:
    write(path, 2)
    torn = path.read_bytes() + b'{"kind":"call.sta'
    head = head_of(path).read_bytes()
    path.write_bytes(torn)
    write(path, 0)
    marked = path.read_bytes()
    for size in range(len(torn) + 1, len(marked) + 1):
        path.write_bytes(marked[:size])
        head_of(path).write_bytes(head)  # its turn comes after the line's
        write(path, 1)
        found = verify(path)
        assert (found.entries, found.torn, found.why) == (4, 1, "")
        path.write_bytes(path.read_bytes() + b"\r\n{")
        write(path, 1)
        assert (verify(path).entries, verify(path).torn, verify(path).why) == (6, 2, "")


def test_lines_the_head_does_not_know_yet_count_after_a_crash(path: Path) -> None:
    write(path, 1)
    head = head_of(path).read_bytes()
    write(path, 2)
    head_of(path).write_bytes(head)
    assert (verify(path).entries, verify(path).why) == (3, "")
    write(path, 1)
    assert (verify(path).entries, verify(path).torn, verify(path).why) == (4, 0, "")


def test_a_full_disk_refuses_the_entry_and_the_chain_is_whole_afterwards(path: Path) -> None:
    write(path, 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(path) as audit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, hard))
        try:
            for _ in range(2):
                with pytest.raises(JournalUnavailable, match="audit"):
                    audit.append(ENTRY)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        audit.append(ENTRY)
    assert verify(path).why == ""
    assert [line.kind for line in read(path)][2:] == [TORN, ENTRY.kind]


WRITER = """
import sys
from pathlib import Path
from holdfast.journal.audit import Audit, AuditEntry
audit = Audit(Path(sys.argv[1]), lambda: 0.0)
for n in range(100_000):
    audit.append(AuditEntry(kind="call.started", call_id=str(n), result="x" * (n % 997)))
    print(n, flush=True)
"""


def test_every_acknowledged_entry_survives_a_kill(path: Path) -> None:
    acknowledged = 0
    for life in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(10 + 7 * life):
                process.stdout.readline()
            os.kill(process.pid, 9)
            acknowledged += 10 + 7 * life + len(process.stdout.readlines())
        found = verify(path)
        assert found.why == "" and found.entries >= acknowledged
