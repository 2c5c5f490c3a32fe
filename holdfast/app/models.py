"""Build the configured model."""

from holdfast.config import program
from holdfast.config.settings import Config
from holdfast.errors import Misconfigured
from holdfast.models.model import Candidate, Model, Models, Price
from holdfast.models.offline import Offline
from holdfast.models.openai import OpenAIModel
from holdfast.models.peer import Settings
from holdfast.models.scripted import Scripted
from holdfast.models.transport import Server


def build_models(config: Config) -> Models:
    """Build the configured models."""
    openai = config.openai
    window, price = openai.context_tokens, Price(openai.usd_per_m_input, openai.usd_per_m_output)
    if config.provider != "openai":
        window, price = 0, Price(free=True)
    return Models(Candidate(config.model, build_model(config), window, price=price))


def build_model(config: Config) -> Model:
    """The configured model."""
    match config.provider:
        case "openai":
            key = config.openai.api_key
            if key is None and config.origins.get("openai.base_url", "default") == "default":
                raise Misconfigured(
                    f"the model is {config.model} and there is no key for {config.openai.base_url}",
                    "set OPENAI_API_KEY, or OPENAI_BASE_URL to a server that needs none",
                )
            return OpenAIModel(
                Server(
                    "openai",
                    config.openai.base_url,
                    key.reveal() if key is not None else "",
                    Settings("OPENAI_API_KEY", "OPENAI_BASE_URL"),
                    config.openai.stall_s,
                )
            )
        case "scripted":
            return Scripted()
        case _:
            return Offline(program.typed())
