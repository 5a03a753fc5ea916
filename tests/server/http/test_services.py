"""Who answers a route: its own handler, or the cells where there are several."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.server.http.routes import ROUTES
from penstock.server.http.services import HttpServices

ROUTE = {route.name: route for route in ROUTES}


class Cells:
    def handler(self, route: Any) -> Any:
        return self.answer if route.name == "stats" else None

    def answer(self, services: object, request: object) -> str:
        return "from a cell"


def services(cells: Cells | None) -> HttpServices:
    parts: dict[str, Any] = dict.fromkeys(field.name for field in msgspec.structs.fields(HttpServices))
    return HttpServices(**{**parts, "cells": cells})


def test_without_cells_a_route_has_its_own_handler() -> None:
    assert services(None).handler_of(ROUTE["stats"]) is ROUTE["stats"].handler


def test_with_cells_they_answer_what_they_hold() -> None:
    cells = Cells()
    assert services(cells).handler_of(ROUTE["stats"]) == cells.answer
    assert services(cells).handler_of(ROUTE["health"]) is ROUTE["health"].handler
