"""Where a run may work: anywhere but where Holdfast keeps what is its own."""

import pytest

from holdfast.core.types import Owner, SessionId, SessionKey
from holdfast.core.workspace import holds, inside, own

HOME = "/home/me/.holdfast"


@pytest.mark.parametrize(
    "path", ["/srv/work", "/home/me/project", "/home/me/.holdfast2", "/home/me/.hold", "/home/you"]
)
def test_a_path_beside_the_home_is_allowed(path: str) -> None:
    assert not inside(path, HOME)
    assert not holds(path, HOME)


@pytest.mark.parametrize("path", [HOME, f"{HOME}/blobs", f"{HOME}/workspaces/somebody"])
def test_a_path_in_the_home_is_inside(path: str) -> None:
    assert inside(path, HOME)


@pytest.mark.parametrize("path", [HOME, "/home/me", "/home", "/"])
def test_a_directory_above_the_home_contains_it(path: str) -> None:
    assert holds(path, HOME)


def test_even_the_root_may_be_the_home() -> None:
    assert inside("/srv", "/")
    assert holds("/", "/")


def test_a_session_has_a_directory_of_its_own_in_the_home() -> None:
    names = [("me", "s"), ("me", "t"), ("you", "s"), ("m", "es")]
    keys = [SessionKey(Owner(owner), SessionId(session)) for owner, session in names]
    places = [own(HOME, key) for key in keys]
    assert len(set(places)) == 4
    assert all(place.startswith(f"{HOME}/workspaces/") for place in places)
    assert places == [own(HOME, key) for key in keys]
