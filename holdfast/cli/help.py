"""The longer help texts of the commands: purpose, examples, exit codes."""

USAGE = """holdfast [options] ["MESSAGE"]
       holdfast [options] COMMAND ..."""
TO_TALK = "a message has a space, or follows two dashes: holdfast -- {}"
TOP = """\
Without a command, holdfast starts a conversation, or one run if the input comes from a pipe. A message
in quotes (holdfast "why does the build fail?"), or after `--`, is what the conversation begins with.

exit codes:
  0 done   1 the run failed, or there is a problem to fix   2 wrong usage
  4 the model's server refused for good   70 a bug in Holdfast   74 output not written
  75 try again: no server reachable, or the run is on hold   78 configuration   130 interrupted
"""
RUN = """Do one run. The answer goes to stdout, everything else to stderr, the result to the exit code.

A run may ask for approval before it does something. On a terminal the question appears there, with
the full command and the choices. Enter alone chooses nothing, and keys that you typed before the
question appeared do not answer it. With --json the question is an event: answer it with
`holdfast approvals`. If stdin is not a terminal, whatever needs an approval is denied, and the
model is told.

If commands are confined worse than before, no work is done until `holdfast sandbox accept`: the run
is kept on hold, and if stdin is not a terminal, or with --json, the exit code is 75. If no gateway
runs, a background process that the run leaves behind ends with this command.
"""
GATEWAY = """Run the server, or install it as a service.

If its unit is installed (`install`), start, stop and restart use the service manager. Otherwise
`start` makes a background process, which logs to log/gateway.log in the home. Accepted work
survives all of them: work that a stop or restart interrupts continues after the next start.
A stop is recorded: `run --boot` respects it, `start` and `run` clear it.
"""
RESTART = """If no unit is installed, the new process keeps the environment and flags of the first
start, works in the home and continues in the background; it logs to log/gateway.log in the home.
The gateway is not restarted while its configuration is wrong."""
APPROVALS = """List what runs ask permission for, and answer.

The first answer counts, whether given here, at the terminal of the run, in a chat or over HTTP.
A request that is not answered in time is denied. Requests survive a restart. An approval is valid
only for exactly what was shown: if that has changed since, it does not run.
"""
REQUEST_ID = """ID is the request's id, or a prefix that is unique.

exit codes: 0 answered; 1 no such request, or it does not offer that choice;
2 no ID given, or the prefix matches several requests
"""
ALLOW = """Permit commands that match PATTERN: they run in the sandbox without a question.

  holdfast approvals allow 'pytest *'          pytest with any plain words behind it
  holdfast approvals allow 'make test'         exactly this
  holdfast approvals allow 'git log *'         git log, not git push

PATTERN is the beginning of a command in plain words. * as the last word stands for any further
words, but not for shell operators: in a line with | or && every command needs its own permission.
It is valid for your own sessions in every workspace, at sandbox level L2 and above, until you
revoke it. Programs that run other programs (sh, env, xargs, sudo) cannot be permitted.
"""
RULE_NAME = """NAME is the permission's name, or a prefix that is unique.

exit codes: 0 revoked; 1 no such permission; 2 the prefix matches several
"""
SANDBOX = """Show how well commands are confined, and whether work is on hold because of that.

  holdfast sandbox                   show the level, what it means, and why work is on hold, if so
  holdfast sandbox accept            continue although commands are confined worse than before

Levels: L3 container, L2 system sandbox, L1 weak sandbox, L0 none. If the level is lower than at the
last work, nothing runs until you accept it; submitted runs are kept. From then on the accepted
level counts: work goes on hold again if the level drops below it, or if a start finds a better
level and a later start a worse one. To improve the level: holdfast doctor

exit codes: 0 shown, or accepted; 1 work is on hold
"""
RUNS = """List the latest runs, or follow one.

  holdfast runs                      list runs: id, time, status, session; newest first
  holdfast runs RUN                  show that run from its first event, and follow it to its end

The list needs a running gateway. If you follow an interrupted run, it continues; without a gateway
it continues in this process. On a terminal, its questions appear here; Ctrl-C stops the run.

exit codes: 0 listed, or the run is done; 1 the run failed, or there is no such run;
75 no gateway runs, or the run is on hold; 130 stopped from here
"""
CONFIG = """List every setting, its value, and where the value comes from.

  holdfast config                    list all settings
  holdfast config path               print the path of the file, even if it is wrong or missing

A flag overrides the environment, which overrides the file, which overrides the default.
Keys and other secrets are never shown.

exit codes: 0 shown; 78 the configuration is wrong; the message says what to do
"""
DOCTOR = """Check what is configured, whether it works, and what to do next.

It checks the home, the model's server, the sandbox, plugins, channels and the gateway; whether work
is on hold; and whether the audit is complete. ✓ is good, ! is worth knowing, ✗ needs a fix. What to
do comes last.

With --fix it first repairs what needs no decision of yours: a home that is missing or readable by
others, files with wrong modes, temporary files left behind, a damaged search index (rebuilt), a
unit that does not match the settings. It lists what it did. It never touches accepted work, keys or
settings.

exit codes: 0 usable; 1 something needs a fix; 78 the configuration is wrong
"""
SESSIONS = """List, search, show, diff, rename, fork, export and import sessions.

ID is the session's id, a unique prefix of it, or its title.
Search matches the beginnings of words in messages and titles, with ⟦ and ⟧ around a match.
A diff leads from before the session (or --run RUN) to its last change, and is as git writes it;
longer than the terminal, it is shown with $PAGER or less.
An import does not change its source, and sessions that exist here already stay as they are: you can
repeat it. Only history is imported: system messages are left out, and the sessions work in
--workspace DIR, or each in a new directory of its own.
A mark is set when a session's work is interrupted, and cleared when a run of it completes. Runs go
on hold if the process has crashed several times in a row and one of them may be the cause. They
continue step by step within ten minutes, and the run that crashes the process is given up.
`release` continues all of them at once.

exit codes: 0 done; 1 no such session, nothing found, or some could not be imported;
2 the prefix matches several sessions
"""
PS = """List what sessions run in the background; show the output of a process, or kill it.

  holdfast ps                        list what runs, oldest first
  holdfast ps output ID              show the end of its output
  holdfast ps kill ID                kill it with all its children; its session is told

--all also lists processes that have ended within a day, and how they ended.
ID is the id of the process, or a unique prefix; proc_ may be left out. In a conversation, /ps does
the same for its session.

exit codes: 0 done; 1 no such process; 2 the prefix matches several processes
"""
PORTS = """List ports of background processes that are published on this machine; publish or close one.

  holdfast ports                     list published ports, with their URLs
  holdfast ports open 3000           publish port 3000 of the process that was started last
  holdfast ports close 3000          close it; the process goes on

Commands of a session have a network of their own: your browser cannot reach a server in it. A
published port is forwarded from 127.0.0.1 of this machine, as long as the process and the gateway
run. The model can ask for it too; then you are asked. Only ports from 1024 on can be published.

exit codes: 0 done; 1 no such process or port, or it cannot be published
"""
OUTBOX = """List undelivered chat messages; resend or drop them.

  holdfast outbox                    list messages that wait or failed, newest first
  holdfast outbox show ID            show one message and what happened to it
  holdfast outbox resend ID          send a message that was held or given up
  holdfast outbox drop ID            give up a message that was not sent

pending: sent next. retry: the platform refused it for now; it is tried again for three days.
ambiguous: it may have arrived. held: it waits for your decision. dead: given up, with the reason.
--all also lists dead messages that are of no use any more, such as those you dropped.
ID is the message's id, or a unique prefix. Without a gateway nothing is sent: a message that you
resend goes out when the next gateway runs.

exit codes: 0 done; 1 no such message, or too late; 2 the prefix matches several messages
"""
AUDIT = """Show who allowed what, and verify that the record is complete.

  holdfast audit                     show the latest entries: approvals, rules, changed files
  holdfast audit --run RUN           only entries about that run
  holdfast audit verify              check whether any entry was changed, moved or removed

An entry `files.changed` names the files that a call changed; --json shows their hashes too.
Each entry contains the hash of the one before. There is no secret in it: a person who can write to
the home can forge all of it. To notice that, store the hash that `verify` prints somewhere else.

exit codes: 0 shown, or complete; 1 broken, with the place
"""
SETUP = """Find a model, try it, and save it in the settings.

  holdfast setup                     choose a provider, paste a key, pick a model, step by step
  holdfast setup --yes               ask nothing; works if there is exactly one
  holdfast setup --base-url URL --model NAME        use that server and that model

It looks for keys in the environment (OPENAI_API_KEY, OPENROUTER_API_KEY, ANTHROPIC_API_KEY,
GROQ_API_KEY, DEEPSEEK_API_KEY, MISTRAL_API_KEY), for OPENAI_BASE_URL, and for Ollama, LM Studio,
llama.cpp and vLLM on this machine. It calls the chosen model once. Only if the model answers, its
name and address are written to config.toml; the rest of the file stays as it is. A key in the
environment stays there unless you pass --save-key; one that you paste at the terminal is not shown,
and is saved in config.toml, readable only by you. Without a terminal nothing is asked, and if nothing
is found, nothing is changed: `offline` works and says what to do next.

exit codes: 0 saved, or nothing found; 2 several found and none chosen;
4 the server refused: wrong key or model; 75 no server reachable; 130 Ctrl-C
"""
MODELS = """List, choose, try and fetch models.

  holdfast models                    list the models that can be used, and why one is in use
  holdfast models list groq          list what that server has
  holdfast models use groq/NAME      save it as the model; `use groq` takes its usual one
  holdfast models test [NAME]        ask it once: how long it takes, or what is wrong
  holdfast models pull builtin       fetch the small built-in model (1.1 GB, runs on this machine)
  holdfast models remove builtin     remove it

A model is NAME/model; NAME is a provider or a table [models.NAME] in config.toml. The first of these
is used: --model, HOLDFAST_MODEL or `model` in config.toml; a table or a key in the environment; a
server on this machine (Ollama, LM Studio, llama.cpp, vLLM); the built-in model; offline.
The list shows what each reads at once, in tokens, and dollars for a million tokens read / written.

exit codes: 0 done; 2 no such model or server; 4 the server refused; 75 no server reachable;
78 the configuration is wrong
"""
COMPLETION = """Print a completion script for your shell.

  eval "$(holdfast completion bash)"                            in ~/.bashrc
  source <(holdfast completion zsh)                             in ~/.zshrc, after compinit
  holdfast completion fish | source                             in config.fish

exit codes: 0 printed
"""
BACKUP = """Write the home to one file: the journal and its files, the configuration, the keys and the
audit. A gateway may be running. The file contains keys: keep it private.

Logs, the search index and other things that can be rebuilt are left out.
"""
RESTORE = """Restore a backup into the home, after checking all of it. No process may use the home.

A backup does not know what happened after it was made. So the next start ends the runs that were
unfinished in it, withdraws open approval requests, and holds messages that may have been sent.
What was in the home is kept there, in a folder before-restore-TIME.
"""
CHANNELS = """List each configured channel: whether it is on, its problems, what it can do.

  holdfast channels                  list all channels

Configure a channel with a table [channels.NAME] in config.toml. Telegram needs only
TELEGRAM_BOT_TOKEN in the gateway's environment. Channels need a running gateway.

exit codes: 0 all good; 1 a channel that is on does not receive; 78 the configuration is wrong
"""
PAIR = """Let in the person who was shown CODE in a chat.

A person the agent does not know gets a code when they write to it. They tell you the code in a way
that proves to you who they are. You see who it is and confirm. The platform guarantees the id; the
name is what they call themselves.

A code works once, for ten minutes. Hyphens, spaces and case do not matter.

roles: run (send messages and have work done), approve (answer what their own runs ask), admin
(everything); read alone is not enough to send messages

exit codes: 0 let in; 1 no such code, or you said no; 2 wrong usage;
75 no gateway runs, or too many wrong codes: the message says when to try again
"""
USERS = """List who may use the chats, with which roles and why; and who waits to be let in.

A person who is let in by the configuration must be removed there: users under [channels.NAME].
A removed person is a stranger at once; questions that wait for their answer stay open.

exit codes: 0 done; 1 no such user; 2 wrong usage; 75 no gateway runs
"""
