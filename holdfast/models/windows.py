"""What is known of well-known models: how much they read at once, and what they cost.

A server's own list, and the configuration, say it better. Prices are those of the vendor's own
server, in US dollars for a million tokens; where they depend on the request, there is none here.
"""

from holdfast.models.model import Price as Price

# The longest prefix counts. Names are compared without the maker before a slash.
_WINDOWS = {
    "gpt-3.5-turbo": 16_385,
    "gpt-4": 8_192,
    "gpt-4-turbo": 128_000,
    "gpt-4o": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-5": 400_000,
    "gpt-oss": 131_072,
    "o1": 200_000,
    "o3": 200_000,
    "o4": 200_000,
    "claude": 200_000,
    "gemini-1.5-flash": 1_048_576,
    "gemini-1.5-pro": 2_097_152,
    "gemini-2": 1_048_576,
    "gemini-3": 1_048_576,
    "llama-3.1": 131_072,
    "llama-3.2": 131_072,
    "llama-3.3": 131_072,
    "llama3": 8_192,
    "llama3.1": 131_072,
    "llama3.2": 131_072,
    "llama3.3": 131_072,
    "qwen2.5": 32_768,
    "qwen3": 32_768,
    "deepseek-chat": 131_072,
    "deepseek-reasoner": 131_072,
    "mistral-large": 131_072,
    "mistral-medium": 131_072,
    "mistral-small": 131_072,
    "mistral-nemo": 131_072,
    "codestral": 256_000,
    "grok-3": 131_072,
    "grok-4": 256_000,
}

_PRICES = {
    "openai": {
        "gpt-4o": Price(2.5, 10.0, 1.25),
        "gpt-4o-mini": Price(0.15, 0.6, 0.075),
        "gpt-4.1": Price(2.0, 8.0, 0.5),
        "gpt-4.1-mini": Price(0.4, 1.6, 0.1),
        "gpt-4.1-nano": Price(0.1, 0.4, 0.025),
        "gpt-5": Price(1.25, 10.0, 0.125),
        "gpt-5-mini": Price(0.25, 2.0, 0.025),
        "gpt-5-nano": Price(0.05, 0.4, 0.005),
    },
    "anthropic": {
        "claude-haiku-4-5": Price(1.0, 5.0, 0.1),
        "claude-opus-4-1": Price(15.0, 75.0, 1.5),
    },
}
_DATED = frozenset("0123456789-")  # what may follow a model's name: the date of its version

OLLAMA = 16_384  # tokens that Ollama is asked to read at once: about 2 GB for 8 billion parameters


def window(model: str) -> int:
    """Return how many tokens the model reads at once; 0: not known."""
    bare = model.rpartition("/")[2].lower()
    known = [prefix for prefix in _WINDOWS if bare.startswith(prefix)]
    return _WINDOWS[max(known, key=len)] if known else 0


def price(vendor: str, model: str) -> Price:
    """Return what the model costs at this vendor; all 0: not known."""
    for name, found in _PRICES.get(vendor, {}).items():
        if model.startswith(name) and set(model.removeprefix(name)) <= _DATED:
            return found
    return Price()
