"""Open the doors: the operator's unix socket, and the network behind the key."""

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from socket import gaierror

from holdfast.api.auth import LOCAL_HOSTS, Doorway, key_hash
from holdfast.api.routes import commands as commands_route
from holdfast.api.routes import hooks, imports, operator, outbox, people
from holdfast.api.routes import search as search_route
from holdfast.api.server import application, listen_tcp, listen_unix, serving
from holdfast.app.principals import NETWORK, OPERATORS_DOOR
from holdfast.channels.channel import Channel
from holdfast.config.home import api_key
from holdfast.config.settings import Config
from holdfast.engine.admin.search import SessionSearch
from holdfast.engine.service import Service
from holdfast.errors import Misconfigured
from holdfast.host.control import GatewayControl
from holdfast.host.lock import SOCKET
from holdfast.journal import search
from holdfast.journal.sqlite.journal import SqliteJournal

MB = 1024 * 1024


async def serve_operator(
    config: Config,
    service: Service,
    journal: SqliteJournal,
    doors: AsyncExitStack,
    orders: GatewayControl | Callable[[], None],
) -> None:
    """Open the operator's own door: the unix socket in the home.

    A gateway takes orders there; a terminal only the one to hand over.
    """
    door = Doorway(OPERATORS_DOOR)
    body = config.limits.body_mb * MB, config.limits.body_s
    handover = None if isinstance(orders, GatewayControl) else orders
    app = application(service, door, *body, handover)
    operator.add_session_routes(app, service.session_admin, OPERATORS_DOOR)
    outbox.add_routes(app, service.delivery_admin, OPERATORS_DOOR)
    finder = SessionSearch(journal, search.Index(config.home / search.FILE), service.clock)
    search_route.add_routes(app, finder, OPERATORS_DOOR)
    imports.add_routes(app, service.library, OPERATORS_DOOR, *body)
    commands_route.add_routes(app, service.commands, OPERATORS_DOOR)
    if isinstance(orders, GatewayControl):
        operator.add_routes(app, orders, OPERATORS_DOOR)
    if service.messenger is not None:
        people.add_routes(app, service.messenger.people, OPERATORS_DOOR)
    runner = await doors.enter_async_context(serving(app))
    await listen_unix(runner, config.home / SOCKET)


async def serve_network(
    config: Config, service: Service, channels: Iterable[Channel], doors: AsyncExitStack
) -> str:
    """Open the network's door, behind the key; its address. Platforms come in by their hooks."""
    gateway = config.gateway
    door = Doorway(
        NETWORK,
        key_hash(api_key(config).reveal()),
        LOCAL_HOSTS | {gateway.host.lower()} | {h.lower() for h in gateway.allowed_hosts},
        frozenset(gateway.allowed_origins),
    )
    body = config.limits.body_mb * MB, config.limits.body_s
    app = application(service, door, *body, None)
    hooks.add_routes(app, channels, config.limits.body_s)
    runner = await doors.enter_async_context(serving(app, config.limits.headers_s))
    try:
        port = await listen_tcp(runner, gateway.host, gateway.port)
    except gaierror:
        raise Misconfigured(
            f"cannot listen on {gateway.host}: no such name", "set gateway.host or --host"
        ) from None
    except OSError as error:
        raise Misconfigured(
            f"cannot listen on {gateway.host}:{gateway.port}: {error.strerror or error}",
            "end what listens there, or choose another port with --port or HOLDFAST_PORT",
        ) from None
    host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
    return f"http://{host}:{port}"
