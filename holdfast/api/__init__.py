"""The HTTP API: schema, endpoints, routes, authentication and the server."""
