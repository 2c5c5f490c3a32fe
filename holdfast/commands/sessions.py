"""/new, /resume, /sessions, /retry, /model and /usage: the session of a conversation."""

from holdfast.commands.command import Command
from holdfast.commands.phrases import ago, code, without_argument
from holdfast.core.approval.approval import Role
from holdfast.gateway import ChatSession, CommandTarget

STARTED = "This is a new session. /resume returns to the previous one."
NO_SESSIONS = "No sessions yet: your next message starts one."
COST = "Cost: ${usd:.4f}."
PRICE_UNKNOWN = "Cost: price unknown (`usd_per_m_input` and `usd_per_m_output` set it)."
_SHOWN = 10  # fits the screen of a phone
_DIGITS = 9  # no session number is longer
_CONFIGURED = "default"


async def _new(chat: CommandTarget) -> str:
    await chat.begin()
    return STARTED


async def _resume(chat: CommandTarget, rest: str) -> str:
    number = rest.removeprefix("#")
    if rest and not (number.isdecimal() and len(number) <= _DIGITS):
        return "/resume takes the number of a session; /sessions lists them."
    back = await chat.resume(int(number) if rest else None)
    started = f"started {ago(back.begun_at, back.now)}"
    return f"Back in session {back.number}: {_first_words(back)}, {started}."


async def _sessions(chat: CommandTarget, rest: str) -> str:
    found = sorted(await chat.sessions(), key=lambda one: one.number, reverse=True)
    if not found:
        return NO_SESSIONS
    shown = [one for at, one in enumerate(found) if at < _SHOWN or one.current]
    lines = [
        f"{one.number}. {_first_words(one)}, {ago(one.begun_at, one.now)}"
        + (", **current**" if one.current else "")
        for one in shown
    ]
    if len(found) > len(shown):
        lines.append(f"And {len(found) - len(shown):,} older.")
    return "\n".join([*lines, "/resume NUMBER returns to one of them."])


def _first_words(one: ChatSession) -> str:
    return code(one.first_words) or "no messages yet"


async def _retry(chat: CommandTarget) -> str:
    await chat.retry()
    return ""  # the new run will answer


async def _model(chat: CommandTarget, rest: str) -> str:
    if not rest:
        now = await chat.status()
        others = [code(name) for name in now.health.models if name != now.model]
        lines = [f"Model: {code(now.model)}. /model NAME changes it, /model default resets it."]
        return "\n".join([*lines, f"Others: {', '.join(others)}"] if others else lines)
    if len(rest.split()) > 1:
        return "/model takes one name, or default for the configured model."
    chosen = await chat.choose_model("" if rest.lower() == _CONFIGURED else rest)
    return f"Model: {code(chosen)}, in this session, from the next run on."


async def _usage(chat: CommandTarget, rest: str) -> str:
    spent = await chat.usage()
    if not spent.total_tokens:
        return "No tokens yet in this session."
    parts = f"{spent.input_tokens:,} read, {spent.output_tokens:,} written"
    tokens = f"Tokens in this session: {spent.total_tokens:,} ({parts})."
    if spent.cost_usd:
        return f"{tokens} {COST.format(usd=spent.cost_usd)}"
    return tokens if (await chat.status()).priced else f"{tokens} {PRICE_UNKNOWN}"


_NEW_HELP = "Start a new session; stop the active run."
_RESUME_HELP = "Return to an earlier session; alone: to the previous one."
_SESSIONS_HELP = "List the sessions of this chat, newest first."
_RETRY_HELP = "Run your last message again and replace its answer."
_MODEL_HELP = "Choose the model of this session; default: the configured one; alone: list them."
_USAGE_HELP = "Show how many tokens this session has used, and what they cost."
COMMANDS = (
    Command("new", "", _NEW_HELP, Role.RUN, without_argument("new", _new)),
    Command("clear", "", "The same as /new.", Role.RUN, without_argument("clear", _new)),
    Command("resume", "[number]", _RESUME_HELP, Role.RUN, _resume),
    Command("sessions", "", _SESSIONS_HELP, Role.READ, _sessions),
    Command("retry", "", _RETRY_HELP, Role.RUN, without_argument("retry", _retry)),
    Command("model", "[name]", _MODEL_HELP, Role.RUN, _model),
    Command("usage", "", _USAGE_HELP, Role.READ, _usage),
    Command("cost", "", "The same as /usage.", Role.READ, _usage),
)
