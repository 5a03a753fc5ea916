"""The HTTP port: one table of routes, one entry for requests, OpenAPI and the console. Knows no aiohttp: `transports.http` does."""
