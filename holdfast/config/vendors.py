"""Providers of models: the protocol, the address, the variables that hold a key, a default model.

Each address is the one in the vendor's own documentation. A key goes to the vendor that its
variable names, and to no other. The order is the order of choice among keys in the environment.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vendor:
    """A provider that `[models.NAME]` can name."""

    name: str
    label: str  # the name for people
    wire: str  # its protocol: a module of holdfast.models
    base_url: str
    variables: tuple[str, ...] = ()  # of the environment, with the key; empty: it needs no key
    model: str = ""  # used if no other is named

    @property
    def variable(self) -> str:
        return self.variables[0]


OPENAI = Vendor(
    *("openai", "OpenAI", "openai", "https://api.openai.com/v1"),
    variables=("OPENAI_API_KEY",),
    model="gpt-5-mini",
)
OLLAMA = Vendor("ollama", "Ollama", "ollama", "http://127.0.0.1:11434")
LM_STUDIO = Vendor("lmstudio", "LM Studio", "openai", "http://127.0.0.1:1234/v1")
LLAMA_CPP = Vendor("llamacpp", "llama.cpp", "openai", "http://127.0.0.1:8080/v1")
VLLM = Vendor("vllm", "vLLM", "openai", "http://127.0.0.1:8000/v1")

VENDORS = (
    OPENAI,
    Vendor(
        *("anthropic", "Anthropic", "anthropic", "https://api.anthropic.com/v1"),
        variables=("ANTHROPIC_API_KEY",),
        model="claude-sonnet-4-5",
    ),
    Vendor(
        *("gemini", "Gemini", "gemini", "https://generativelanguage.googleapis.com/v1beta"),
        variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        model="gemini-2.5-flash",
    ),
    Vendor(
        *("openrouter", "OpenRouter", "openai", "https://openrouter.ai/api/v1"),
        variables=("OPENROUTER_API_KEY",),
        model="openai/gpt-5-mini",
    ),
    Vendor(
        *("groq", "Groq", "openai", "https://api.groq.com/openai/v1"),
        variables=("GROQ_API_KEY",),
        model="llama-3.3-70b-versatile",
    ),
    Vendor(
        *("deepseek", "DeepSeek", "openai", "https://api.deepseek.com"),
        variables=("DEEPSEEK_API_KEY",),
        model="deepseek-chat",
    ),
    Vendor(
        *("mistral", "Mistral", "openai", "https://api.mistral.ai/v1"),
        variables=("MISTRAL_API_KEY",),
        model="mistral-medium-latest",
    ),
    Vendor(
        *("xai", "xAI", "openai", "https://api.x.ai/v1"),
        variables=("XAI_API_KEY",),
        model="grok-4",
    ),
    Vendor(
        *("together", "Together", "openai", "https://api.together.xyz/v1"),
        variables=("TOGETHER_API_KEY",),
        model="meta-llama/Llama-3.3-70B-Instruct-Turbo",
    ),
    Vendor(
        *("responses", "OpenAI Responses", "responses", "https://api.openai.com/v1"),
        variables=("OPENAI_API_KEY",),
        model="gpt-5-mini",
    ),
    OLLAMA,
    LM_STUDIO,
    LLAMA_CPP,
    VLLM,
)

# Variables that other programs use for other keys: chosen last, and with these words.
DOUBTFUL = {
    "GOOGLE_API_KEY": "; if that key is for another service of Google, name a model: "
    "HOLDFAST_MODEL, or model in config.toml"
}
BY_NAME = {vendor.name: vendor for vendor in VENDORS}
VARIABLES = tuple(dict.fromkeys(name for vendor in VENDORS for name in vendor.variables))


def at(base_url: str) -> Vendor | None:
    """Return the vendor whose address it is, if it is one's."""
    return next((v for v in VENDORS if v.base_url == base_url.strip().rstrip("/")), None)
