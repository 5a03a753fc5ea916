"""The names of `import penstock`: each is documented, each docstring example runs, and the types are shipped."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
import threading
import types
import zipfile
from collections.abc import Iterator

import pytest

import penstock
import penstock.testing
from penstock.client.sync.twin import BlockingMethod
from penstock.testing.server import token_of
from tests.paths import ROOT

NAMES = [name for name in penstock.__all__ if name != "__version__"]
FROM_PYTHON = {"add_note", "with_traceback", "count", "index"}
"""Methods of exceptions and tuples."""
DOORS = {"connect", "connect_sync", "Space", "SyncSpace", "QueueCore", "StreamOffer"} | {
    "TokenPublisher",
    "SyncTokenPublisher",
    "TokenStream",
    "SyncTokenStream",
}
PLAIN = {"Arrival", "Capability", "Complete", "RawConnection", "ServerHello", "VerifierCounts"}
"""Names in signatures that users need not import: unions, mappings, and read-only values."""
ENDLESS = {"LiveView", "Space", "Subscription", "Subscription.work", "SyncSubscription.work"}
"""Examples that wait for more, as programs do; without `async` there is no way to stop them."""
ENDLESS_S = 0.2
PATIENCE_S = 20.0
EXAMPLE = re.compile(r"^ *Example:\n(?P<code>(?:\n| +.*\n?)+)", re.M)


def methods(kind: type) -> Iterator[tuple[str, str | None]]:
    """The public methods and properties of a class, each with its docstring."""
    for name in dir(kind):
        found = inspect.getattr_static(kind, name)
        if name.startswith("_") or name in FROM_PYTHON:
            continue
        if isinstance(found, property):
            yield name, found.fget.__doc__
        elif inspect.isfunction(found) or isinstance(found, BlockingMethod):
            yield name, found.__doc__


def examples() -> Iterator[tuple[str, str]]:
    """Every example of every public name, with where it stands."""
    for name in [*NAMES, "testing"]:
        value = getattr(penstock, name)
        if isinstance(value, types.ModuleType):
            value = value.serve
        texts = [(name, value.__doc__)]
        if inspect.isclass(value):
            texts += [(f"{name}.{method}", text) for method, text in methods(value)]
        for where, text in texts:
            found = EXAMPLE.search(inspect.cleandoc(text or "") + "\n")
            if found is not None:
                yield where, textwrap.dedent(found["code"])


EXAMPLES = dict(examples())


@pytest.mark.promise(
    "SDK and command line",
    "every public name is documented, its example runs, and its types are public and shipped in the wheel",
)
@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_and_method_is_documented(name):
    value = getattr(penstock, name)
    assert value.__doc__, name
    if inspect.isclass(value):
        bare = [method for method, text in methods(value) if not text]
        assert bare == [], f"{name} has methods without a docstring"


@pytest.mark.promise("SDK and command line", "everything that opens is a context manager")
def test_everything_that_closes_is_a_context_manager():
    closing = [kind for kind in map(penstock.__getattr__, NAMES) if hasattr(kind, "close")]
    assert len(closing) > 10
    assert [kind for kind in closing if not {"__aexit__", "__exit__"} & set(dir(kind))] == []


def test_no_public_method_is_for_our_own_use():
    """Besides the declared names, an object shows an application only what a class documents."""
    with penstock.testing.serve() as server, server.connect_sync("jen") as jen:
        jen.send("jen", 1)
        with jen.inbox() as inbox:
            delivery = next(inbox)
            for twin in (jen, inbox, delivery):
                source = twin._source
                declared = {name for name, _ in methods(type(source))}
                shown = {name for name in dir(source) if not name.startswith("_")}
                assert shown - declared - {"uplink"} <= {name for name in dir(twin) if not name.startswith("_")}, source
            delivery.ack()


def test_every_door_has_an_example():
    assert set(EXAMPLES) >= DOORS
    assert {"Client.ask", "SyncClient.ask", "Subscription.work", "SyncSubscription.work", "testing"} <= set(EXAMPLES)


@pytest.mark.promise(
    "SDK and command line",
    "every public name is documented, its example runs, and its types are public and shipped in the wheel",
)
def test_every_type_that_a_method_returns_has_a_public_name():
    known = {*penstock.__all__, "Any", "AsyncIterator", "Iterator", "None", "Self"} | PLAIN
    for name in NAMES:
        kind = getattr(penstock, name)
        if not inspect.isclass(kind) or kind is penstock.QueueCore:
            continue
        for method, _ in methods(kind):
            found = inspect.getattr_static(kind, method)
            function = found.fget if isinstance(found, property) else getattr(found, "__wrapped__", found)
            returned = str(function.__annotations__.get("return", ""))
            assert set(re.findall(r"\b[A-Z]\w+", returned)) <= known, f"{name}.{method} returns {returned}"


def test_type_checkers_and_the_interpreter_see_the_same_names():
    """The interpreter reads `_EXPORTS`; a type checker reads the star imports."""
    for module, names in penstock._EXPORTS.items():
        exported = getattr(importlib.import_module(module), "__all__", [])
        assert not exported or sorted(exported) == sorted(names.split()), module
    [block] = [node for node in ast.parse(inspect.getsource(penstock)).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert list(dict.fromkeys(node.module for node in imports)) == list(penstock._EXPORTS)
    explicit = {alias.asname for node in imports for alias in node.names if alias.name != "*"}
    assert explicit == {"Policy", "QueueCore", "Rate", "Retry", *penstock._EXPORTS["penstock.core.errors"].split()}


@pytest.mark.parametrize(("old", "new"), penstock._RENAMED.items())
def test_an_old_name_still_works_and_warns(old, new):
    assert old not in penstock.__all__
    with pytest.warns(DeprecationWarning, match=f"`penstock.{old}` is now `penstock.{new}`"):
        assert getattr(penstock, old) is getattr(penstock, new)


@pytest.fixture(scope="module")
def server() -> Iterator[penstock.testing.MemoryServer]:
    with penstock.testing.serve(spaces={"demo": ["ann", "sam", "collector"]}, relay=True) as server:
        yield server


@pytest.mark.promise(
    "SDK and command line",
    "every public name is documented, its example runs, and its types are public and shipped in the wheel",
)
@pytest.mark.parametrize("where", EXAMPLES)
def test_an_example_runs(where, server, monkeypatch):
    """With what stands around it in a real program: a client, an agent who answers, a place in a space, keys of a stream."""
    monkeypatch.setenv("PENSTOCK_URL", server.url)
    code = EXAMPLES[where].replace("http://localhost:8787", server.http)
    is_async = "await " in code or "async " in code
    program = compile(code, where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if is_async else 0)
    relay, offer = server.relay, penstock.StreamOffer()
    answer = penstock.answer_offer(offer.text, relay.pub, signer=relay.signer)
    names = {
        "penstock": penstock,
        "asyncio": asyncio,
        "token": token_of("demo", "sam"),
        "relay": relay,
        "answer": answer,
        "agreement": offer.accept(answer.text, signer=relay.signer.public),
        "make_small": lambda file: None,
    }
    if where.removeprefix("Sync").startswith("TokenStream"):
        with penstock.SyncTokenPublisher(relay.push, answer.agreement.keys, signer=relay.signer) as publisher:
            publisher.send("once")
    if is_async:
        asyncio.run(_run(program, names, server, where))
    elif where not in ENDLESS:
        with server.connect_sync("jen") as jen, jen.inbox() as inbox:
            answering = threading.Thread(target=inbox.work, args=(lambda question: question.reply(7),))
            answering.start()
            exec(program, names)
            inbox.close()
            answering.join(PATIENCE_S)


async def _run(program, names, server, where) -> None:
    async def answer(question):
        await question.reply(7)

    async with (
        server.connect("jen") as jen,
        server.connect("ann") as client,
        server.space("demo", "collector"),
        server.space("demo", "ann") as space,
    ):
        answering = asyncio.create_task(jen.inbox().work(answer))
        names |= {"client": client, "space": space}
        try:
            async with asyncio.timeout(ENDLESS_S if where in ENDLESS else PATIENCE_S):
                await eval(program, names)
        except TimeoutError:
            assert where in ENDLESS
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


@pytest.mark.promise(
    "SDK and command line",
    "every public name is documented, its example runs, and its types are public and shipped in the wheel",
)
def test_the_wheel_says_that_it_is_typed(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert "penstock/py.typed" in archive.namelist()
