"""Journal time: never back, exact within a boot, and on the safe side over one."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.life import timeline
from holdfast.core.life.timeline import BEHIND_S, STEP_S, Begun, Downtime, Reading, TimeAnchor

pytestmark = pytest.mark.promise("TIME-01", "TIME-02")

EPOCH = 1_700_000_000.0
HOUR_S, DAY_S = 3600.0, 86_400.0


@dataclass
class Machine:
    """A machine whose clocks are known, and what its journal has written down."""

    true: float = EPOCH
    wall_off_by: float = 0.0
    booted: float = EPOCH - 100
    boots: int = 1
    newest: float = 0.0
    anchor: TimeAnchor | None = None
    begun: Begun | None = None

    @property
    def reading(self) -> Reading:
        return Reading(f"boot {self.boots}", self.true - self.booted, self.true + self.wall_off_by)

    @property
    def now(self) -> float:
        assert self.anchor is not None
        return self.anchor.time(self.reading.boot_s)

    def start(self) -> Begun:
        self.begun = timeline.begin(self.anchor, self.newest, self.reading)
        self.anchor = self.begun.anchor
        return self.begun

    def record(self) -> float:
        self.newest = self.now
        return self.newest

    def notice(self) -> bool:
        assert self.anchor is not None
        stepped = timeline.after_step(self.anchor, self.reading)
        self.anchor = stepped or self.anchor
        return stepped is not None

    def boot(self, off_s: float, *, wall: float | None = None) -> None:
        self.true += off_s
        self.booted, self.boots = self.true - 20, self.boots + 1
        if wall is not None:
            self.wall_off_by = wall


def started() -> Machine:
    machine = Machine()
    machine.start()
    machine.record()
    return machine


def test_the_first_start_takes_the_wall_clock_as_it_is() -> None:
    machine = Machine(wall_off_by=-5.0)
    assert machine.start() == Begun(TimeAnchor("boot 1", 100.0, EPOCH - 5))


@pytest.mark.parametrize("step_s", [26 * HOUR_S, -HOUR_S, 100 * 365 * DAY_S])
def test_a_step_moves_nothing_and_is_noticed_once(step_s: float) -> None:
    machine = started()
    machine.true += 10
    machine.wall_off_by += step_s
    assert machine.now == EPOCH + 10
    assert [machine.notice(), machine.notice()] == [True, False]
    machine.true += 10
    begun = machine.start()  # again, within the same boot
    assert (machine.now, begun.downtime, begun.doubtful) == (EPOCH + 20, None, False)


def test_noise_is_no_step() -> None:
    machine = started()
    machine.wall_off_by += STEP_S
    assert not machine.notice()


def test_a_boot_id_that_is_not_known_is_never_the_same_boot() -> None:
    nowhere = Reading("", 50.0, EPOCH + 500)
    anchor = TimeAnchor("", 10.0, EPOCH)
    assert timeline.begin(anchor, EPOCH, nowhere).anchor.at == EPOCH + 500


def test_a_boot_clock_that_went_back_is_another_boot() -> None:
    anchor = TimeAnchor("b", 100.0, EPOCH)
    begun = timeline.begin(anchor, EPOCH + 7, Reading("b", 5.0, EPOCH + 500))
    assert begun.downtime == Downtime(EPOCH + 500, 493.0)


def test_before_its_anchor_no_time_has_passed() -> None:
    assert TimeAnchor("b", 100.0, EPOCH).time(99.0) == EPOCH


def test_over_a_boot_the_wall_clock_tells_how_long_it_was_off() -> None:
    machine = started()
    machine.boot(3 * DAY_S)
    begun = machine.start()
    assert begun.downtime == Downtime(EPOCH + 3 * DAY_S, 3 * DAY_S)
    assert not begun.doubtful
    assert machine.now == EPOCH + 3 * DAY_S


def test_a_clock_that_was_ahead_keeps_its_lead_and_is_not_doubted_at_every_boot() -> None:
    machine = Machine(wall_off_by=50 * 365 * DAY_S)
    machine.start()
    lead = machine.record() - machine.true
    machine.wall_off_by = 0.0  # somebody puts it right
    assert machine.notice()
    machine.boot(DAY_S)
    begun = machine.start()
    assert not begun.doubtful
    assert machine.now - machine.true == pytest.approx(lead)
    assert begun.anchor.offset == pytest.approx(-lead)


def test_a_clock_that_was_behind_is_taken_over_at_the_next_boot() -> None:
    machine = Machine(wall_off_by=-26 * HOUR_S)
    machine.start()
    machine.record()
    machine.wall_off_by = 0.0
    assert machine.notice()
    machine.boot(HOUR_S)
    begun = machine.start()
    assert machine.now == machine.true
    assert begun.downtime == Downtime(machine.true, 27 * HOUR_S)


@pytest.mark.parametrize(
    ("behind_s", "doubtful"), [(BEHIND_S - 1, False), (BEHIND_S + 1, True), (DAY_S, True)]
)
def test_a_clock_that_went_back_over_a_boot_is_doubted(behind_s: float, doubtful: bool) -> None:
    machine = started()
    machine.boot(0.0, wall=-behind_s)
    begun = machine.start()
    assert begun.doubtful is doubtful
    assert machine.now == machine.newest


def test_downtime_does_not_count_for_retention() -> None:
    downs = [Downtime(900.0, 300.0), Downtime(400.0, 50.0)]
    assert timeline.measured_before(950.0, downs) == 950.0
    assert timeline.measured_before(880.0, downs) == 580.0
    assert timeline.measured_before(690.0, downs) == 340.0
    assert timeline.measured_before(500.0, []) == 500.0


_SECONDS = st.floats(0, 10 * DAY_S)
_STEPS = st.floats(-400 * DAY_S, 400 * DAY_S)
_LIFE = st.one_of(
    st.tuples(st.just("pass"), _SECONDS),
    st.tuples(st.just("step"), _STEPS),
    st.tuples(st.just("restart"), _SECONDS),
    st.tuples(st.just("boot"), _SECONDS),
)


@settings(deadline=None)
@given(life=st.lists(_LIFE, max_size=30), noticing=st.booleans())
def test_journal_time_never_goes_back_and_is_exact_within_a_boot(
    life: list[tuple[str, float]], noticing: bool
) -> None:
    machine = started()
    before, true_before, boot = machine.now, machine.true, machine.boots
    measured = 0.0
    downs: list[Downtime] = []
    for what, seconds in life:
        match what:
            case "pass":
                machine.true += seconds
            case "step":
                machine.wall_off_by += seconds
                if noticing:
                    machine.notice()
            case "restart":
                machine.record()
                machine.true += seconds
                machine.start()
            case _:
                machine.record()
                machine.boot(seconds)
                if (down := machine.start().downtime) is not None:
                    downs.insert(0, down)
        now = machine.now
        assert now >= before
        if machine.boots == boot:
            assert now - before == pytest.approx(machine.true - true_before, abs=1e-3)
            measured += machine.true - true_before
        before, true_before, boot = now, machine.true, machine.boots
    limit = timeline.measured_before(machine.now - measured - 0.1, downs)
    assert limit == pytest.approx(EPOCH - 0.1, abs=0.05), (
        "what is retained is kept for measured time"
    )
