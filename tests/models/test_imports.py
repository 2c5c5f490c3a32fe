"""What a provider costs to import, as a ratio to the bare interpreter, measured in the same run."""

import subprocess
import sys

import msgspec

PROVIDERS = (
    "openai",
    "responses",
    "anthropic",
    "gemini",
    "ollama",
    "builtin.builtin",
    "scripted",
    "offline",
)
ROUNDS = 5
MOST = 2.0  # a bare interpreter takes about 10 ms, so this is 20 ms

# In a process that has imported the engine, as a gateway has; each import in a fork of its own.
MEASURE = """
import gc, os, sys, time
bare = time.process_time()
import holdfast.app.engine
from importlib import import_module
gc.disable()  # a collection that falls due is not the cost of an import
def cost(name):
    reading, writing = os.pipe()
    if not os.fork():
        before = time.process_time()
        import_module(f"holdfast.models.{name}")
        os.write(writing, str(time.process_time() - before).encode())
        os._exit(0)
    os.wait()
    return float(os.read(reading, 100))
names = sys.argv[2:]
costs = {name: min(cost(name) for _ in range(int(sys.argv[1]))) / bare for name in names}
import msgspec
print(msgspec.json.encode(costs).decode())
"""


def test_importing_a_provider_costs_at_most_two_bare_interpreters() -> None:
    command = [sys.executable, "-c", MEASURE, str(ROUNDS), *PROVIDERS]
    done = subprocess.run(command, check=True, capture_output=True)
    costs = msgspec.json.decode(done.stdout, type=dict[str, float])
    assert set(costs) == set(PROVIDERS)
    assert max(costs.values()) <= MOST, costs
