"""`holdfast audit`: shown to people and to programs, verified with an exit code."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.cli.ops.audit import NO_ENTRIES
from holdfast.journal.audit import FILE, Audit, AuditEntry
from tests.cli import Place

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.environ["PYTHONPATH"] = str(ROOT)
    return made


@contextmanager
def audit(place: Place) -> Iterator[Audit]:
    place.home.mkdir(exist_ok=True)
    made = Audit(place.home / FILE, lambda: 1_700_000_000.0)
    try:
        yield made
    finally:
        made.close()


def record(place: Place) -> None:
    with audit(place) as it:
        it.append(
            AuditEntry(
                kind="approval.granted",
                who="operator",
                platform="cli",
                run_id="run_a",
                choice="once",
            )
        )
        it.append(AuditEntry(kind="call.denied", run_id="run_b", result="no\n\x1b[2J\u202ebad"))


async def test_nothing_recorded_is_said_and_is_not_wrong(place: Place) -> None:
    shown = await place.holdfast("audit")
    assert (shown.code, shown.out) == (0, f"{NO_ENTRIES}\n")
    verified = await place.holdfast("audit", "verify")
    assert verified.code == 0 and verified.out.startswith("complete: 0 entries")


async def test_entries_are_shown_a_line_each_and_steer_no_terminal(place: Place) -> None:
    record(place)
    shown = await place.holdfast("audit", "show")
    first, second = shown.out.splitlines()
    assert "approval.granted" in first and "operator@cli" in first and "choice once" in first
    assert second.endswith(r"no\n\x1b[2J\u202ebad")


async def test_entries_can_be_chosen_by_run_and_number_and_read_by_programs(place: Place) -> None:
    record(place)
    of_run = await place.holdfast("audit", "--run", "run_a", "--json")
    assert [json.loads(line)["n"] for line in of_run.out.splitlines()] == [1]
    last = await place.holdfast("audit", "show", "--last", "1", "--json")
    assert [json.loads(line)["n"] for line in last.out.splitlines()] == [2]


async def test_a_whole_chain_verifies_and_a_broken_one_fails_and_says_where(place: Place) -> None:
    record(place)
    whole = await place.holdfast("audit", "verify", "--json")
    assert whole.code == 0
    assert json.loads(whole.out).items() >= {"ok": True, "entries": 2, "why": ""}.items()
    path = place.home / FILE
    path.write_bytes(path.read_bytes().replace(b"once", b"deny"))
    broken = await place.holdfast("audit", "verify")
    assert broken.code == 1 and broken.out.startswith("broken at line 1 ")
    told = json.loads((await place.holdfast("audit", "verify", "--json")).out)
    assert (told["ok"], told["line"]) == (False, 1)


async def test_it_works_where_the_configuration_is_wrong(place: Place) -> None:
    place.configure("nonsense = 1\n")
    assert (await place.holdfast("audit", "verify")).code == 0
