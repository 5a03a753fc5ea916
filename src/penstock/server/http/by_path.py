"""The doors of one HTTP port: who answers a request is decided by its path."""

from __future__ import annotations

from typing import Any

from penstock.server.http.listener import CourierDoor
from penstock.server.spaces.listener import MewDoor, is_for_spaces
from penstock.transports.http import Answer, Exchange, Plan, Stream


class Doors:
    """Courier and the spaces on one port."""

    def __init__(self, courier: CourierDoor, mew: MewDoor) -> None:
        self._courier = courier
        self._mew = mew

    def _door(self, exchange: Exchange) -> Any:
        return self._mew if is_for_spaces(exchange) else self._courier

    @property
    def body_max(self) -> int:
        return max(self._courier.body_max, self._mew.body_max)

    def admit(self, exchange: Exchange) -> Answer | None:
        refused: Answer | None = self._door(exchange).admit(exchange)
        return refused

    async def answer(self, exchange: Exchange) -> Answer:
        answer: Answer = await self._door(exchange).answer(exchange)
        return answer

    def stream(self, exchange: Exchange) -> Stream | Answer | None:
        stream: Stream | Answer | None = self._door(exchange).stream(exchange)
        return stream

    def upgrade(self, exchange: Exchange) -> Plan | Answer:
        plan: Plan | Answer = self._door(exchange).upgrade(exchange)
        return plan

    def too_large(self, exchange: Exchange) -> Answer:
        answer: Answer = self._door(exchange).too_large(exchange)
        return answer

    def malformed(self, reason: str) -> Answer:
        return self._courier.malformed(reason)

    def failed(self, exchange: Exchange, error: BaseException) -> Answer:
        answer: Answer = self._door(exchange).failed(exchange, error)
        return answer

    def answer_headers(self, exchange: Exchange) -> dict[str, str]:
        headers: dict[str, str] = self._door(exchange).answer_headers(exchange)
        return headers
