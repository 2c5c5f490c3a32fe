"""`holdfast setup`: find a model, try it, and only then write it down.

What is there is offered, and nothing is chosen beforehand unless there is just one. The chosen
one is called once, as a run would call it; whatever goes wrong until then, a Ctrl-C too, leaves
the settings as they were. A key stays where it is, in the environment, unless it is asked for.

What is asked and told on the way goes to stderr, what became of it to stdout.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence

import anyio
from msgspec.structs import asdict, replace

from holdfast.cli.exits import Code, Exit
from holdfast.cli.service import service
from holdfast.cli.setup import config_file, discover, try_model
from holdfast.cli.setup.discover import FoundServer
from holdfast.cli.setup.guide import KEPT, Guide
from holdfast.config import process as configuration
from holdfast.config import program
from holdfast.config.models import ModelTable
from holdfast.config.settings import Config
from holdfast.config.vendors import OLLAMA, OPENAI, VARIABLES
from holdfast.core.text.escape import reveal
from holdfast.core.types import Value
from holdfast.host import local_models

SHOWN = 20  # of a server's models; the others can be named
_NEXT = ("{it}            a conversation, here", "{it} doctor     whether all is well")
_OFFLINE = """\
No model was found: no key in the environment, and no server on this machine (ports {ports}).
It works without one: `offline` obeys plain commands, like: {it} run "list the files here"

Next, one of these, and then again: {it} setup
  export OPENAI_API_KEY=…                         or {variables}
  start Ollama, LM Studio, llama.cpp or vLLM      on another port: --ports N
  {it} setup --base-url URL --model NAME      a server elsewhere"""


class SetupOptions(Value):
    """What the flags say."""

    model: str
    base_url: str
    unasked: bool  # nothing is to be asked
    save_key: bool
    ports: tuple[int, ...]


class Saved(Value):
    """What was written down."""

    model: str
    base_url: str  # empty: no server is needed
    config: str
    seconds: float  # that the answer took
    notes: list[str]


def main(args: argparse.Namespace) -> int:
    """Find, choose, try, save."""
    config = configuration.peek({})
    wish = SetupOptions(
        model=args.model or "",
        base_url=args.base_url or "",
        unasked=bool(args.yes or args.json),
        save_key=args.save_key,
        ports=_ports(args.ports, config),
    )
    found = _find(wish, config)
    try:
        saved = _set_up(wish, config, found)
    except Exit as error:
        if args.json:
            _print_json(found, None, str(error))
        raise
    if args.json:
        _print_json(found, saved, "")
    elif saved is not None:
        _tell(saved)
    else:
        ports = ", ".join(str(port) for port in wish.ports) or "none"
        variables = ", ".join(name for name in VARIABLES if name not in OPENAI.variables)
        print(_OFFLINE.format(ports=ports, variables=variables, it=program.typed()))
    return Code.OK


def _ports(said: str | None, config: Config) -> tuple[int, ...]:
    if said is None:
        return config.probe_ports if config.probe_local else ()
    words = [word.strip() for word in said.split(",") if word.strip()]
    for word in words:
        if not word.isascii() or not word.isdigit() or not 0 < int(word) < 65536:
            raise Exit(Code.USAGE, f"--ports is {said}: it must be numbers, like 11434,1234")
    return tuple(int(word) for word in words)


def _find(wish: SetupOptions, config: Config) -> list[FoundServer]:
    if wish.base_url:
        return [discover.named(wish.base_url, "named by --base-url")]
    here = discover.here(anyio.run(local_models.look, wish.ports)) if wish.ports else []
    return discover.distinct([*discover.configured(config, configuration.vendors_found()), *here])


def _set_up(wish: SetupOptions, config: Config, found: Sequence[FoundServer]) -> Saved | None:
    """What was saved; nothing where there is nothing to try."""
    if wish.model == "offline":
        return _save(wish, configuration.peek({"model": "offline"}), None, 0.0)
    if _is_guided(wish):
        made = Guide(config, found).walk()
        wish = replace(wish, save_key=wish.save_key or made.save_key)
        return _save(wish, made.config, made.server, made.seconds)
    if not found and not wish.model:
        return None
    server = _choose(wish, found) if found else discover.place(OPENAI.base_url, "it is OpenAI's")
    at = server.settings(config)
    name = _model(wish, server, at)
    chosen = configuration.peek({"model": f"{server.provider}/{name}", **at})
    table = _table(chosen)
    if wish.save_key and not table.keys:
        variable = table.vendor.variable if table.vendor.variables else OPENAI.variable
        raise Exit(Code.USAGE, f"there is no key to save: set {variable}; {KEPT}")
    _changed(wish, chosen)  # what cannot be saved need not be tried
    using = f", with the key from {table.key_origin}" if table.keys else ""
    _say(f"Trying {chosen.model} at {table.base_url}{using} …")
    try:
        tried = try_model.call(chosen, _say)
    except Exit as refused:
        raise Exit(refused.code, f"{_in_our_words(table, str(refused))}; {KEPT}") from None
    return _save(wish, chosen, server, tried.seconds)


def _in_our_words(table: ModelTable, said: str) -> str:
    """Return a refusal that names the flags of this command."""
    text, mark, hint = said.rpartition("; ")
    for theirs, ours in (
        (table.key_setting, "the key in " + table.key_setting),
        ("HOLDFAST_MODEL", "--model"),
        (table.url_setting, "--base-url"),
    ):
        hint = hint.replace(theirs, ours)
    return text + mark + hint


def _table(config: Config) -> ModelTable:
    table = config.table
    assert table is not None  # only `offline` has none
    return table


def _choose(wish: SetupOptions, found: Sequence[FoundServer]) -> FoundServer:
    if wish.model and len(found) > 1:
        having = [one for one in found if _bare(wish.model, one.models, one.provider) in one.models]
        found = having if len(having) == 1 else found
    width = max(len(one.name) for one in found)
    _say("Found:")
    for number, one in enumerate(found, 1):
        models = ", ".join(reveal(name) for name in one.models[:3])
        more = f" and {len(one.models) - 3} more" if len(one.models) > 3 else ""
        has = f": {models}{more}" if models else ""
        _say(f"  {number}  {one.name:{width}}  {one.base_url}  ({one.why}{has})")
    if len(found) == 1:
        return found[0]
    if wish.unasked:
        raise Exit(Code.USAGE, f"several were found: say which with --base-url URL; {KEPT}")
    return found[_number("Which one?", len(found), "--base-url URL") - 1]


def _is_guided(wish: SetupOptions) -> bool:
    """Tell whether a person at a terminal is led through the steps."""
    named = wish.unasked or wish.base_url or wish.model
    return not named and sys.stdin is not None and sys.stdin.isatty()


def _model(wish: SetupOptions, server: FoundServer, at: Mapping[str, str]) -> str:
    """Return the name of the model, as its server knows it."""

    def listed() -> tuple[str, ...]:
        table = _table(configuration.peek({"model": f"{server.provider}/any", **at}))
        return anyio.run(discover.list_models, table, _say)

    if wish.model:
        doubtful = wish.model.startswith("openai/") and server.base_url != OPENAI.base_url
        models = server.models
        if doubtful and not models:
            models = listed()
        return _bare(wish.model, models, server.provider)
    if server.model:
        return server.model
    models = server.models or listed()
    if len(models) == 1:
        return models[0]
    if wish.unasked:
        has = f"it has {', '.join(models[:SHOWN])}" if models else "it does not say which it has"
        raise Exit(Code.USAGE, f"say which model with --model NAME: {has}; {KEPT}")
    if server.provider == OLLAMA.name and not models:
        raise Exit(Code.FAILED, f"it has no model yet: ollama pull NAME; {KEPT}")
    return _name_one(models, server.provider)


def _bare(said: str, models: Sequence[str], provider: str) -> str:
    """Return the name without our own `provider/` before it, unless it is part of the name there."""
    return said if said in models else said.removeprefix(f"{provider}/")


def _name_one(models: Sequence[str], provider: str) -> str:
    for number, name in enumerate(models[:SHOWN], 1):
        _say(f"  {number:2}  {reveal(name)}")
    if len(models) > SHOWN:
        _say(f"      and {len(models) - SHOWN} more")
    prompt = f"Which model? (1-{len(models[:SHOWN])}, or a name) " if models else "Which model? "
    while True:
        answer = _ask(prompt, "--model NAME")
        if answer.isascii() and answer.isdigit() and 0 < int(answer) <= len(models[:SHOWN]):
            return models[int(answer) - 1]
        if answer and not answer.isdigit():
            return _bare(answer, models, provider)


def _number(prompt: str, highest: int, flag: str) -> int:
    while True:
        answer = _ask(f"{prompt} (1-{highest}) ", flag)
        if answer.isascii() and answer.isdigit() and 0 < int(answer) <= highest:
            return int(answer)


def _ask(prompt: str, flag: str) -> str:
    """The next line of whoever is there, or comes through the pipe."""
    print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline() if sys.stdin is not None else ""
    if not line:
        _say("")
        raise Exit(Code.USAGE, f"nobody has answered; say it with {flag}; {KEPT}")
    return line.strip()


def _changed(wish: SetupOptions, chosen: Config) -> str:
    """The file as it will be."""
    now = configuration.peek({})
    values = {"model": chosen.model}
    if (table := chosen.table) is not None:
        known = now.models.get(table.name)
        of_file = now.origins.get(f"{table.section}.base_url") == str(now.file)
        if not table.is_vendors or (of_file and known is not None):
            values[f"{table.section}.base_url"] = table.base_url
        if wish.save_key and table.keys:
            values[f"{table.section}.api_key"] = table.keys[0].reveal()
    return config_file.changed(now.file, config_file.read(now.file), values)


def _save(wish: SetupOptions, chosen: Config, server: FoundServer | None, took_s: float) -> Saved:
    text = _changed(wish, chosen)
    try:
        config_file.write(chosen.file, text, 0o600 if wish.save_key else None)
    except OSError as error:
        why = f"cannot write {chosen.file}: {error.strerror}"
        raise Exit(Code.OUTPUT, f"{why}; {KEPT}") from None
    return Saved(
        model=chosen.model,
        base_url=_table(chosen).base_url if server is not None else "",
        config=str(chosen.file),
        seconds=round(took_s, 1),
        notes=_notes(wish, chosen, server),
    )


def _notes(wish: SetupOptions, chosen: Config, server: FoundServer | None) -> list[str]:
    """What is to be known about what was saved."""
    now, notes = configuration.peek({}), []
    ours, theirs = chosen.table, now.table
    for what, new, old in (
        ("model", chosen.model, now.model),
        ("openai.base_url", ours and ours.base_url, theirs and theirs.base_url),
    ):
        if new != old and (what == "model" or chosen.provider == now.provider == OPENAI.name):
            variable = now.origins[what].removeprefix("environment ")
            notes.append(f"{variable} is set to {old} and wins over the file: unset {variable}")
    origin = ours.key_origin if ours is not None else ""
    variable = origin.removeprefix("environment ")
    if server is not None and origin and server.keyless:
        notes.append(
            f"The key in {variable} is sent along, though that server answers without one: "
            "if it is for somebody else, take it away"
        )
    elif server is not None and origin.startswith("environment ") and not wish.save_key:
        notes.append(
            f"The key was not saved: {variable} must be set wherever holdfast runs. "
            "To keep it in the file, for you alone to read: the same with --save-key"
        )
    if anyio.run(service.look, now) is not None:
        notes.append("The gateway that runs has it after: holdfast gateway restart")
    return notes


def _print_json(found: Sequence[FoundServer], saved: Saved | None, error: str) -> None:
    report = {
        "found": [asdict(one) for one in found],
        "saved": asdict(saved) if saved is not None else None,
        "error": error or None,
    }
    print(json.dumps(report, ensure_ascii=False), flush=True)


def _tell(saved: Saved) -> None:
    answered = f" It answered in {saved.seconds} s." if saved.base_url else ""
    print(f"Saved in {saved.config}: model {saved.model}.{answered}")
    for note in saved.notes:
        print(f"! {note}")
    print("\nNext:")
    for line in _NEXT:
        print(f"  {line.format(it=program.typed())}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
