"""Handlers of routes about the server as a whole: metrics, the place of an envelope, and the landing page."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.core.errors import Refusal
from penstock.dialects.courier.operations.queries import MetricsSurvey, WhereSurvey
from penstock.server.engine.schedulers import completed
from penstock.server.http.request import Request
from penstock.server.http.services import HttpServices
from penstock.server.metrics import prometheus_families
from penstock.transports.http_replies import Reply

COURIER = """Penstock is running.

Send a message     curl -d '{"to":"sam","type":"hello","payload":{}}' %(url)s/v1/send
Take it            curl -d '{"stream":"agents/sam/inbox"}' %(url)s/v1/pull
The whole surface  %(url)s/openapi.json
"""
GATEWAY = """Penstock is running, as a gateway of MEW spaces.

Who is there       curl %(url)s/participants
Say something      curl -H 'Authorization: Bearer TOKEN' -d '{"kind":"chat","payload":{"text":"hello"}}' %(url)s/participants/NAME/messages
Join               a WebSocket to the same address, first message {"type":"join","participantId":"NAME","token":"TOKEN"}
"""
PLAIN = "text/plain; charset=utf-8"


class MetricsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/metrics`: 1 asks for figures of each stream, 0 for sums; else as configured."""

    streams: Annotated[int, msgspec.Meta(ge=0, le=1)] | None = None


def welcome(services: HttpServices, request: Request) -> Reply:
    """The console's page, or a text with the first commands to try."""
    page = None if services.console is None else services.console.page(request.headers)
    if page is not None:
        return page
    text = COURIER if services.config.serves_courier else GATEWAY
    url = f"http://{request.headers.get('Host', 'localhost')}"
    return Reply(200, (text % {"url": url}).encode(), PLAIN)


async def metrics(services: HttpServices, request: Request) -> Reply:
    survey = MetricsSurvey(services.machine, request.principal)
    await completed(services.runtime.survey, survey)
    return Reply(200, survey.body())


async def where(services: HttpServices, request: Request) -> Reply | Refusal:
    survey = WhereSurvey(services.machine, request.principal, request.values[0])
    await completed(services.runtime.survey, survey)
    body = survey.body()
    return body if isinstance(body, Refusal) else Reply(200, body)


async def prometheus(services: HttpServices, request: Request) -> Reply:
    wanted: int | None = request.query.streams
    per_stream = None if wanted is None else wanted == 1
    scrape = services.exporter.scrape(request.principal, per_stream=per_stream)
    await completed(services.runtime.survey, scrape)
    return Reply(200, scrape.text(), prometheus_families.CONTENT_TYPE)
