"""The suite passes however it was started, also with `nohup` or `&`."""

import signal
import subprocess

import pytest


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_process_that_a_test_starts_hears_the_signal(number: signal.Signals) -> None:
    ended = subprocess.run(["sh", "-c", f"ulimit -c 0; kill -{int(number)} $$"])
    assert ended.returncode == -number
