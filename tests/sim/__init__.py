"""Seeded simulations: the real engine, everything else simulated, all randomness from one seed.

`simloop` (tests/fakes) is time and order, `memory_disk` and `memory_journal` what survives a kill,
`world` the gateway's lives one after the other, `parrot` the model, `people` whoever is outside,
`stories` what happens, `seeds` which are tried. Chats have their own of each: `chat_world`,
`platforms`, `listener`, `chats` and `chat_stories`.

    HOLDFAST_SIM_SEEDS=10000 pytest tests/sim -n 2     that many, not the few of `make test`
    HOLDFAST_SIM_SEED=4711 pytest tests/sim/test_week.py     one again, as its failure says

To add an actor:

* Somebody outside (a person, a platform that redelivers, an operator) is a `people.Person`:
  `live` is its task for as long as the world lasts, `done` whether it waits for nothing more,
  `check` what it finds at the end. It reaches the gateway by `world.visit` only, which gives
  None when the process ended first: then it does again what it would do in life. What it keeps
  is what the outside knows; it never looks into a process. Give it to `stories.live`.
* A part of the gateway (a channel, a tool) is made anew for each `world.Process`, in `_parts`;
  what it talks to (the platform behind a channel) is the world's and outlives it. A task takes
  one more step after its process was killed. So whatever has an effect outside asks first
  whether `process is world.process` and, if not, never returns, as `World.hear` does.
* A new fault is a person too (`Outage`), or a field of `Death`.
* A new projection of the journal is a case in `memory_disk.Disk`; the conformance suites say
  whether it is right.

What must hold is said by `world.blame`, at once where it can be seen at once. Chance comes
from `world.random` alone, and nothing may depend on the order of a set: the same seed must be
the same world in every process (test_seeds.py). Wait by `asyncio.sleep` where the moment
matters and by `world.clock.sleep` where it does not: while nothing happens the latter takes
long steps, so that a quiet day costs nothing.
"""
