"""What the help of a command says beyond its options."""

RUNS = """What was done lately, and how it ended.

  holdfast runs                      the latest runs: id, when, status, session; newest first
  holdfast runs RUN                  show that run from its first event on, and follow it to its end

The list comes from whoever serves the home. A run that was cut and is followed goes on, here if
nobody serves the home. On a terminal it asks there what it has to ask; Ctrl-C stops it.

exit codes: 0 listed, or the run is done; 1 the run failed, or there is none of that id;
75 nobody serves the home, or the run is held; 130 it was stopped from here
"""
CONFIG = """Every setting, its value, and where that comes from.

  holdfast config                    all of them
  holdfast config path               where the file with them is, also if it is wrong or missing

A flag counts more than the environment, that more than the file, that more than the default.
A key or any other secret is never shown.

exit codes: 0 shown; 78 the configuration is wrong, and what to do about it
"""
DOCTOR = """What is set, what works, and what to do next.

It tries what can be tried: the home, the model's server, the sandbox, the plugins, whoever owns
the home; and whether work is held, and whether the audit is whole. ✓ is well, ! is worth
knowing, ✗ needs mending; what to do comes last.

exit codes: 0 usable; 1 something needs mending; 78 the configuration is wrong
"""
AUDIT = """Who allowed what, and whether that is still all of it.

  holdfast audit                     the latest entries, oldest first: approvals, denials, rules
  holdfast audit --run RUN           only what concerns that run
  holdfast audit verify              whether any entry was changed, moved or taken away

Each entry carries the hash of the one before. There is no key in it: whoever may write the home
may forge all of it. To notice that, keep the hash that `verify` tells somewhere else.

exit codes: 0 shown, or whole; 1 broken, and where
"""
