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

With --fix it first mends what can be mended without a decision of yours: a home that is missing
or open to others, files in it that are, drafts that were left behind, a search index that is
damaged (it is made anew), a unit that is not what the settings ask for. It says what it did. What
was accepted, keys and settings are never touched.

exit codes: 0 usable; 1 something needs mending; 78 the configuration is wrong
"""
SESSIONS = """Sessions: what was said in them, and what cut their work.

  holdfast sessions                  the latest ones, each with its mark
  holdfast sessions search TEXT      those in which it was said, best and newest first
  holdfast sessions show ID          all that was said in one
  holdfast sessions rename ID TITLE  give it a title
  holdfast sessions fork ID          begin another one where this one is
  holdfast sessions export ID        as markdown; --format json: to be imported; -o FILE
  holdfast sessions import [PATH]    those of hermes-agent (~/.hermes), or one that was exported
  holdfast sessions unmark ID        drop its mark: nobody is to be told of the cut any more
  holdfast sessions mark ID          have whoever goes on with it told that it was cut
  holdfast sessions release          let all runs go on that are held

ID is the session's id, or as much of its beginning as no other has, or its title.
A search finds words by their beginning, in what people and the model said and in titles; what is
found stands between ⟦ and ⟧. An import changes nothing where it reads, and what is here already
stays as it is: it can be done again.
A mark stands from the moment a session's work is cut until a run of it completes. Runs are held
where the process has ended several times in a row and one of them may be why: they go on bit by
bit, within ten minutes, and the one that ends it is given up. `release` does not wait for that.

exit codes: 0 done; 1 there is no such session, nothing was found, or some could not be imported;
2 several begin so
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
SETUP = """Find a model, try it, and write it down.

  holdfast setup                     look, offer what is there, ask
  holdfast setup --yes               the same without a question, where there is just one
  holdfast setup --base-url URL --model NAME        that server, that model

It looks for keys in the environment (OPENAI_API_KEY, OPENROUTER_API_KEY, ANTHROPIC_API_KEY,
GROQ_API_KEY, DEEPSEEK_API_KEY, MISTRAL_API_KEY), for OPENAI_BASE_URL, and for Ollama, LM Studio,
llama.cpp and vLLM on this machine. The chosen model is called once. Only if it answers, its name
and its address are written to config.toml; all else there stays as it is. A key stays in the
environment, unless --save-key is said. Where nothing is found nothing is changed: `offline`
works, and it says what to do next.

exit codes: 0 saved, or nothing was found; 2 several were found and nobody has chosen;
4 the server refused: the key or the model is wrong; 75 it could not be reached; 130 Ctrl-C
"""
COMPLETION = """A script for the shell, made from what can be said to this holdfast.

  eval "$(holdfast completion bash)"                            in ~/.bashrc
  source <(holdfast completion zsh)                             in ~/.zshrc, after compinit
  holdfast completion fish | source                             in config.fish

exit codes: 0 printed
"""
