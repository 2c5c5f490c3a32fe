"""Build the configured model."""

from holdfast.config import program
from holdfast.config.settings import Config
from holdfast.errors import Misconfigured
from holdfast.models.model import Candidate, Model, Models
from holdfast.models.offline import Offline
from holdfast.models.openai import OpenAIModel
from holdfast.models.peer import Settings
from holdfast.models.scripted import Scripted
from holdfast.models.transport import Server


def build_models(config: Config) -> Models:
    """Build the configured models."""
    if config.provider == "builtin":
        return Models(builtin_candidate(config))
    window = config.openai.context_tokens if config.provider == "openai" else 0
    return Models(Candidate(config.model, build_model(config), window))


def builtin_candidate(config: Config) -> Candidate:
    """Build the built-in model, with its own prompt and tools."""
    from holdfast.models.builtin import builtin, protocol  # noqa: PLC0415  only if it is used

    return Candidate(
        builtin.ID, builtin.create(config.home), protocol.WINDOW, profile=protocol.PROFILE
    )


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
