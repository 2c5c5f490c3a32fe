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

It tries what can be tried: the home, the model's server, the sandbox, plugins, channels,
whoever owns the home; and whether work is held, and whether the audit is whole. ✓ is well,
! is worth knowing, ✗ needs mending; what to do comes last.

exit codes: 0 usable; 1 something needs mending; 78 the configuration is wrong
"""
SESSIONS = """Sessions, and what cut their work.

  holdfast sessions                  those of the latest runs, each with its mark
  holdfast sessions unmark ID        drop its mark: nobody is to be told of the cut any more
  holdfast sessions mark ID          have whoever goes on with it told that it was cut
  holdfast sessions release          let all runs go on that are held

A mark stands from the moment a session's work is cut until a run of it completes. Runs are held
where the process has ended several times in a row and one of them may be why: they go on bit by
bit, within ten minutes, and the one that ends it is given up. `release` does not wait for that.

exit codes: 0 done; 1 there is no such session, it has no mark, or it is suspended
"""
OUTBOX = """Messages to chats that are not sent, and a word to them.

  holdfast outbox                    what waits, is held or was given up; newest first
  holdfast outbox show ID            all of one message, and what became of it
  holdfast outbox resend ID          send what was held or given up after all
  holdfast outbox drop ID            give up what was not sent

pending: it goes out next. retry: the chat's platform would not have it yet; it is tried again,
for a day. ambiguous: nobody knows whether it arrived. held: it waits for your word. dead: it was
given up, and why. Of those that are dead, --all shows also what nobody will miss.
ID is the message's id, or as much of its beginning as no other has. Without a gateway nothing is
sent: a message that you resend goes out when the next one runs.

exit codes: 0 done; 1 there is no such message, or it is too late for that; 2 several begin so
"""
AUDIT = """Who allowed what, and whether that is still all of it.

  holdfast audit                     the latest entries, oldest first: approvals, denials, rules
  holdfast audit --run RUN           only what concerns that run
  holdfast audit verify              whether any entry was changed, moved or taken away

Each entry carries the hash of the one before. There is no key in it: whoever may write the home
may forge all of it. To notice that, keep the hash that `verify` tells somewhere else.

exit codes: 0 shown, or whole; 1 broken, and where
"""
