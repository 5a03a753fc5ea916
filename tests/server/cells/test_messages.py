"""Messages between front and cells survive their encoding, with who speaks and what was refused."""

import msgspec

from penstock.core.errors import Refusal
from penstock.core.scopes import OPERATOR
from penstock.dialects.courier.sessions.front.legs import LegHello
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery
from penstock.server.cells.messages import CellConfig, CellRequest, CellTask, FromCell, LegEnded, LegOpened, ToCell
from penstock.server.config.load import Config


def test_messages_are_read_as_they_were_written() -> None:
    to_cell: list[ToCell] = [
        LegOpened(1, 3, LegHello(OPERATOR, "peer", "sam", "-3"), SubscribeQuery("jobs", credit=5)),
        CellRequest(2, 3, "stats", ("a",), {"stream": "jobs"}, "peer", OPERATOR, b"\x00", True),
        CellConfig(Config()),
    ]
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(to_cell), type=list[ToCell])
    assert again == to_cell
    ended: FromCell = LegEnded(1, 1008, "Forbidden", Refusal("Forbidden", "no", hint="ask"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ended), type=FromCell) == ended  # type: ignore[arg-type]


def test_a_task_is_one_line_of_json() -> None:
    task = CellTask(Config(), None, 1, (1, 2), "/tmp/x", "secret")
    data = msgspec.json.encode(task)
    assert b"\n" not in data
    assert msgspec.json.decode(data, type=CellTask) == task
