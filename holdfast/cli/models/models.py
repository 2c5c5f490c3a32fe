"""`holdfast models`: list, choose and try models; fetch and remove the built-in one."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace

import anyio
import msgspec

from holdfast.api.schema.health import HealthDetails
from holdfast.app.resolve import resolve
from holdfast.cli.client import operator
from holdfast.cli.exits import Code, Exit
from holdfast.cli.models import listing
from holdfast.cli.models.listing import ListedRow
from holdfast.cli.output import note, short
from holdfast.cli.setup import config_file, try_model
from holdfast.config import process as configuration
from holdfast.config.settings import Config
from holdfast.config.vendors import BY_NAME
from holdfast.core.text.escape import reveal
from holdfast.errors import Misconfigured
from holdfast.host.lock import is_locked
from holdfast.models.builtin.parts import ID, NAME, ModelFolder

BUILTIN_ONLY = "only the built-in model is fetched and removed here: say builtin"
NO_MODEL = "no model to try: offline is none. Try: holdfast setup"
_OWNER_S = 3.0


def main(args: argparse.Namespace) -> int:
    """List, choose, try, fetch or remove."""
    match args.what:
        case "use":
            return _use(args.which)
        case "test":
            return _test(args.which, as_json=args.json)
        case "pull" | "remove":
            return _fetch(args.what, args.which)
        case _:
            return _list(args.which, as_json=args.json)


def _list(name: str, *, as_json: bool) -> int:
    config = anyio.run(resolve, configuration.peek({}))
    rows = anyio.run(listing.of_server, config, name) if name else anyio.run(listing.rows, config)
    serving = anyio.run(_serving, config)
    if as_json:
        report = {
            "model": config.model,
            "reason": config.model_reason,
            "serving": serving or None,
            "models": [msgspec.structs.asdict(row) for row in rows],
        }
        print(json.dumps(report, ensure_ascii=False))
        return Code.OK
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        print(_line(row, min(width, 48)))
    print(f"\nIn use: {config.model}: {config.model_reason}.")
    if serving and serving != config.model:
        note(f"The server of this home uses {serving} until: holdfast gateway restart")
    return Code.OK


def _line(row: ListedRow, width: int) -> str:
    mark = "*" if row.role == listing.IN_USE else " "
    window = f"{row.window:,}" if row.window else "?"
    role = f"{row.role}, " if row.role and row.role != listing.IN_USE else ""
    return f"{mark} {reveal(row.name):{width}}  {window:>9}  {row.price:>15}  {role}{row.origin}"


async def _serving(config: Config) -> str:
    """Return the model of the process that owns the home; empty: there is none."""
    if not is_locked(config.home):
        return ""
    try:
        _, said = await operator.request(config.home, "GET", "/health/detailed", within_s=_OWNER_S)
        return msgspec.json.decode(said, type=HealthDetails).model
    except (*operator.LOST, msgspec.DecodeError):
        return ""


def _use(given: str) -> int:
    chosen = _named(given)
    file = chosen.file
    text = config_file.changed(file, config_file.read(file), {"model": chosen.model})
    try:
        config_file.write(file, text)
    except OSError as error:
        raise Exit(Code.OUTPUT, f"cannot write {file}: {error.strerror}") from None
    print(f"Saved in {file}: model {chosen.model}.")
    _warn(chosen, configuration.peek({}))
    return Code.OK


def _warn(chosen: Config, now: Config) -> None:
    """Note what still keeps the model from being used."""
    if now.model != chosen.model:
        variable = now.origins["model"].removeprefix("environment ")
        note(f"{variable} is set to {now.model} and wins over the file: unset {variable}")
    table = chosen.table
    if table is not None and table.lacks_key:
        where = f"write api_key under [{table.section}] in {chosen.file}"
        note(f"There is no key for it: export {table.vendor.variable}=…, or {where}")
    if chosen.provider == NAME and not ModelFolder(chosen.home).is_complete:
        note("It is not here yet: holdfast models pull builtin")
    if (serving := anyio.run(_serving, now)) and serving != chosen.model:
        note(f"The server of this home uses {serving} until: holdfast gateway restart")


def _test(given: str, *, as_json: bool) -> int:
    if given:
        chosen = _named(given)
    else:
        chosen = anyio.run(resolve, configuration.peek({}))
    if chosen.provider == "offline":
        raise Exit(Code.USAGE, NO_MODEL)
    pool = _each_key(chosen)
    if len(pool) > 1:
        return _test_keys(pool, as_json=as_json)
    tried = try_model.call(chosen, note)
    if as_json:
        report = {"model": chosen.model, **msgspec.structs.asdict(tried)}
        print(json.dumps(report, ensure_ascii=False))
        return Code.OK
    tokens = f"{tried.input_tokens:,} tokens read, {tried.output_tokens:,} written"
    print(f"{chosen.model} answered in {tried.seconds:.1f} s ({tokens}): {short(tried.text, 60)}")
    return Code.OK


def _each_key(config: Config) -> list[Config]:
    """Return the configuration with each of the model's keys alone."""
    table = config.table
    if table is None:
        return [config]
    tables = [msgspec.structs.replace(table, keys=(key,)) for key in table.keys]
    return [replace(config, models={**config.models, one.name: one}) for one in tables]


def _test_keys(pool: Sequence[Config], *, as_json: bool) -> int:
    """Try every key; the worst result is the exit code."""
    worst: int = Code.OK
    report = list[dict[str, object]]()
    for number, config in enumerate(pool, 1):
        said, told = f"{config.model} with key {number} of {len(pool)}", {"key": number}
        try:
            tried = try_model.call(config, note)
            report.append({**told, **msgspec.structs.asdict(tried)})
            said = f"{said} answered in {tried.seconds:.1f} s"
        except Exit as refused:
            worst = max(worst, refused.code)
            report.append({**told, "error": str(refused)})
            said = f"{said} failed: {refused}"
        if not as_json:
            print(said, flush=True)
    if as_json:
        print(json.dumps({"model": pool[0].model, "keys": report}, ensure_ascii=False))
    return worst


def _named(given: str) -> Config:
    """Return the configuration with the model of that name."""
    whole = _whole(configuration.peek({}), given)
    try:
        return configuration.peek({"model": whole})
    except Misconfigured as error:
        raise Exit(Code.USAGE, f"{given} is no model; {error.hint}") from None


def _whole(config: Config, given: str) -> str:
    """Return the whole name of a model: of a provider alone, that of its usual model."""
    if given == NAME:
        return ID
    table = config.models.get(given)
    model = table.model if table is not None else ""
    if not model and given in BY_NAME:
        model = BY_NAME[given].model
    return f"{given}/{model}" if model else given


def _fetch(what: str, name: str) -> int:
    if name not in (NAME, ID):
        raise Exit(Code.USAGE, BUILTIN_ONLY)
    from holdfast.cli.models import pull  # noqa: PLC0415  only for a download

    home = configuration.peek({}).home
    (pull.fetch if what == "pull" else pull.discard)(home)
    return Code.OK
