"""What stands outside of the journal tells whether it was put back from a backup."""

import pytest

from holdfast.core.life.evidence import (
    AUDIT_IS_OLDER,
    COPIED,
    CUT_SINCE_MARK,
    OLDER_THAN_AUDIT,
    OLDER_THAN_MARK,
    Doubt,
    Finding,
    Mark,
    Outside,
    Own,
    compare,
)

pytestmark = pytest.mark.promise("TIME-03")


@pytest.mark.parametrize(
    ("own", "outside", "finding"),
    [
        (Own(5, 7, 3), Outside(5, 7, 3), None),
        (Own(9, 7, 3), Outside(5, 7, 8), None),  # a crash: either may be a little ahead
        (Own(5, 0, 0), Outside(5, 7, 3), None),  # of before: it does not know its file
        (Own(5, 7, 3), Outside(5, 0, 3), None),  # on a file system that keeps no numbers
        (Own(4, 7, 3), Outside(5, 7, 9), Finding(Doubt.RESTORED, OLDER_THAN_AUDIT)),
        (Own(0, 0, 0), Outside(5, 7, 9), Finding(Doubt.RESTORED, OLDER_THAN_AUDIT)),
        (Own(5, 7, 3), Outside(5, 8, 3), Finding(Doubt.RESTORED, COPIED)),
        (Own(5, 7, 3), Outside(5, 7, 2), Finding(Doubt.AUDIT, AUDIT_IS_OLDER)),
        (Own(5, 7, 3), Outside(0, 7, 0), Finding(Doubt.AUDIT, AUDIT_IS_OLDER)),
        (Own(5, 7, 3), Outside(5, 7, 3, Mark(5, 3)), None),
        (Own(9, 7, 3), Outside(5, 7, 8, Mark(5, 3)), None),  # a crash: the mark was not moved yet
        (Own(5, 7, 3), Outside(5, 7, 3, Mark(6, 3)), Finding(Doubt.RESTORED, OLDER_THAN_MARK)),
        (Own(5, 7, 3), Outside(5, 7, 3, Mark(5, 4)), Finding(Doubt.AUDIT, CUT_SINCE_MARK)),
    ],
)
def test_the_journal_and_what_stands_beside_it_are_compared_both_ways(
    own: Own, outside: Outside, finding: Finding | None
) -> None:
    assert compare(own, outside) == finding
