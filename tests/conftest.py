"""What every test has around it: the leak fence, the promises it proves, a loop of its own."""

import pytest

pytest_plugins = ["tests.fence", "tests.promises_plugin"]


@pytest.fixture
def anyio_backend() -> str:
    """Asyncio. Of a test's own scope: no two tests share a loop, so none leaks into the next."""
    return "asyncio"
