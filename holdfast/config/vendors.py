"""Who else sells models over OpenAI's wire: where, and under which name people keep the key.

Each address is the one that the vendor's own documentation gives for OpenAI's clients. A key
goes to the vendor that its variable names, and to nobody else.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vendor:
    """A server for everybody who has a key for it."""

    name: str
    variable: str  # of the environment, with the key
    base_url: str


VENDORS = (
    Vendor("OpenRouter", "OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
    Vendor("Anthropic", "ANTHROPIC_API_KEY", "https://api.anthropic.com/v1"),
    Vendor("Groq", "GROQ_API_KEY", "https://api.groq.com/openai/v1"),
    Vendor("DeepSeek", "DEEPSEEK_API_KEY", "https://api.deepseek.com"),
    Vendor("Mistral", "MISTRAL_API_KEY", "https://api.mistral.ai/v1"),
)


def at(base_url: str) -> Vendor | None:
    """Whose address it is, if it is a vendor's."""
    return next((v for v in VENDORS if v.base_url == base_url.strip().rstrip("/")), None)
