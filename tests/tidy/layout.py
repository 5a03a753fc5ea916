"""The rules about the tree as a whole: folders, names, sizes, budgets and mirrored tests.

Each rule takes the files of the tree as a mapping from path to source, and yields `(what, message)`: what breaks the rule, as a short text
that `allowed.toml` can name, and how to repair it. The allow-list may only shrink: an entry that is no longer needed fails too.

    python -m tests.tidy.layout             # what breaks a rule and is not allowed
    python -m tests.tidy.layout --shrink    # drop the entries that are no longer needed
"""

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

Sources = Mapping[str, str]
"""Path from the root of the repository -> text."""
Found = Iterator[tuple[str, str]]

FOLDER_MAX = 20
SIBLINGS_MAX = 2
LINES_MIN, LINES_MAX = 60, 400
MIRRORED_MIN = 80
SRC_LINES_MAX = 81_000
BENCH_LINES_MAX = 4_900
GERUNDS = {"encoding", "firing", "framing", "logging", "pending", "staging"}
"""What the field says; `pending` is no gerund, and a rule fires."""
BANNED_WORDS = {
    "beats", "crowd", "cure", "desk", "hall", "hear", "heard", "lane", "mend", "misfit", "neighbour", "stir",
    "tell", "told", "voice", "wish",
}  # fmt: skip
COY_WORDS = re.compile(r"\b(?:nobody|somebody|whoever|whomever|misfits?|mended|mends?)\b", re.IGNORECASE)
INTERFACE_NAMES = re.compile(r"""(["`])(?:misfit|schema\.misfit|journal\.mended|nobody)\1""")
"""Values of JSON fields, log events and a principal that have such a word in their names, which stay."""
DOCS_WIDTH_MAX = 120
INDEPENDENT = {"penstock.dialects"}
"""Packages whose folders do not know one another; a contract of another type says so."""
ALLOWED = Path(__file__).with_name("allowed.toml")
BENCH = "src/penstock/bench/"
_SIZE_REASON = re.compile(r"^# size: \S.{9,}", re.MULTILINE)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ALIASED = re.compile(r"^\s*(?:from penstock\..* import .*|[\w, ]+) as \w+", re.M)
"""What a file with an alias of ours has in some line; the others need not be walked through."""
_FILE_MENTION = re.compile(r"(?<![\w/.{}*<-])((?:[a-z_]+/)+[a-z_]+\.py)\b")


_parsed = cache(ast.parse)
"""Several rules read the same module; parsing it is what they cost."""


def modules(sources: Sources) -> Iterator[str]:
    """The modules of the package, without the fronts of its folders."""
    for path in sorted(sources):
        if path.startswith("src/penstock/") and path.endswith(".py") and not path.endswith("__.py"):
            yield path


def crowded_folders(sources: Sources) -> Found:
    """Folders with more modules than a reader takes in."""
    for folder, count in sorted(Counter(str(PurePosixPath(path).parent) for path in modules(sources)).items()):
        if count > FOLDER_MAX:
            yield folder, f"{count} modules, at most {FOLDER_MAX}: sort them into folders"


def prefixed_siblings(sources: Sources) -> Found:
    """Names that spell a folder: `relay_hub`, `relay_desk`, `relay_process`."""
    families: dict[str, list[str]] = defaultdict(list)
    for path in modules(sources):
        pure = PurePosixPath(path)
        families[f"{pure.parent}/{pure.stem.partition('_')[0]}_*"].append(pure.stem)
    for family, names in sorted(families.items()):
        if len(names) > SIBLINGS_MAX:
            yield family, f"make a folder of {', '.join(names)}"


def odd_sizes(sources: Sources) -> Found:
    """Crumbs and giants without a line that says why."""
    for path in modules(sources):
        count = len(sources[path].splitlines())
        if not LINES_MIN <= count <= LINES_MAX and not _SIZE_REASON.search(sources[path]):
            yield (
                path,
                f"{count} lines, expected {LINES_MIN} to {LINES_MAX}: merge it, split it, or add `# size: why`",
            )


def repeated_classes(sources: Sources) -> Found:
    """Public class names with two meanings: a search for one finds both."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(sources):
        if path.startswith("src/"):
            for node in _parsed(sources[path]).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(path)
    for name, paths in sorted(homes.items()):
        if len(paths) > 1:
            yield name, f"is a class in {', '.join(paths)}: a public name exists once"


def gerund_modules(sources: Sources) -> Found:
    """Modules named by what happens instead of by what they hold."""
    for path in modules(sources):
        word = PurePosixPath(path).stem.rpartition("_")[2]
        if word.endswith("ing") and word not in GERUNDS:
            yield path, f"`{word}` is a gerund: name the thing, or the one operation"


def repeated_modules(sources: Sources) -> Found:
    """A module with the name of one in the folder above, where no folder distinguishes them."""
    names = {(str(PurePosixPath(path).parent), PurePosixPath(path).stem) for path in modules(sources)}
    for folder, stem in sorted(names):
        if (str(PurePosixPath(folder).parent), stem) in names:
            yield f"{folder}/{stem}.py", "has the name of a module one folder above"


def banned_identifiers(sources: Sources) -> Found:
    """Private words in names that the code defines."""
    for path in sorted(sources):
        if path.startswith("src/") and path.endswith(".py"):
            for name in sorted(set(_defined(_parsed(sources[path])))):
                words = {word.lower() for word in _WORDS.findall(name)}
                for word in sorted(words & BANNED_WORDS):
                    yield f"{path}:{name}", f"`{word}` is a private word: use the one of the field"


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case _:
                pass


def silent_defaults(sources: Sources) -> Found:
    """`case _` arms that do something: an unexpected value must not purge a queue."""
    for path in sorted(sources):
        if path.startswith("src/penstock/") and path.endswith(".py") and "case " in sources[path]:
            for number, function in _default_arms(_parsed(sources[path])):
                yield (
                    f"{path}:{function}",
                    f"line {number}: end `case _` with assert_never, raise, return or pass",
                )


def _default_arms(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Match):
                    last = node.cases[-1]
                    is_default = (
                        isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and not last.guard
                    )
                    if is_default and not _refuses(last.body):
                        yield last.pattern.lineno, function.name


def _refuses(body: list[ast.stmt]) -> bool:
    match body[-1]:
        case ast.Raise() | ast.Return() | ast.Pass() | ast.Continue():
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return True
        case _:
            return False


def prefix_dispatch(sources: Sources) -> Found:
    """Routes distinguished by a prefix of their names."""
    for path in sorted(sources):
        if path.startswith(("src/penstock/server/http/", "src/penstock/server/admin/")):
            for node in ast.walk(_parsed(sources[path])):
                match node:
                    case ast.Call(func=ast.Attribute(attr="startswith", value=value)) if _last(value) in {
                        "route",
                        "operation",
                        "handler",
                        "name",
                    }:
                        yield (
                            f"{path}:{_last(value)}",
                            f"line {node.lineno}: put the handler on the route instead",
                        )
                    case _:
                        pass


def _last(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def missing_mirrors(sources: Sources) -> Found:
    """Modules without a test file at the mirrored path."""
    for path in modules(sources):
        pure = PurePosixPath(path.removeprefix("src/penstock/"))
        mirror = f"tests/{pure.parent}/test_{pure.name}".replace("/./", "/")
        if len(sources[path].splitlines()) >= MIRRORED_MIN and mirror not in sources:
            yield path, f"has no {mirror}"


def old_names(sources: Sources) -> Found:
    """Import aliases under which a module's or a class's old name lives on."""
    for path in sorted(sources):
        if path.endswith(".py") and _ALIASED.search(sources[path]):
            for node in ast.walk(_parsed(sources[path])):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock."):
                    for alias in node.names:
                        if (
                            alias.asname
                            and f"src/{node.module}/{alias.name}.py".replace(".", "/", (node.module or "").count("."))
                            in sources
                        ):
                            yield (
                                f"{path}:{alias.asname}",
                                f"imports the module `{alias.name}` under another name",
                            )


def dead_mentions(sources: Sources) -> Found:
    """Files that prose names and that are not there."""
    ends = {path[index + 1 :] for path in sources for index in [-1, *(i for i, c in enumerate(path) if c == "/")]}
    for path in sorted(sources):
        if path.startswith(("src/", "docs/", "ARCHITECTURE", "CONTRIBUTING", "README")):
            for mention in sorted(set(_FILE_MENTION.findall(sources[path]))):
                if mention not in ends:
                    yield f"{path}:{mention}", "names a file that is not there"


def coy_prose(sources: Sources) -> Found:
    """Words that plain technical English does not need, in what people read."""
    for path in sorted(sources):
        if path.startswith(
            (
                "src/",
                "docs/",
                "README",
                "ARCHITECTURE",
                "CONTRIBUTING",
                "SECURITY",
                "CHANGELOG",
                "console/src/",
            )
        ):
            for word in sorted({word.lower() for word in COY_WORDS.findall(INTERFACE_NAMES.sub("", sources[path]))}):
                yield f"{path}:{word}", f"says `{word}`: say who, or use the passive voice"


def long_lines(sources: Sources) -> Found:
    """Prose of the documents that is not wrapped. Tables, code blocks and links cannot be."""
    for path in sorted(sources):
        if path.endswith(".md") and not path.startswith("docs/reference/"):
            is_code = False
            for line in sources[path].splitlines():
                is_code ^= line.lstrip().startswith("```")
                if len(line) > DOCS_WIDTH_MAX and not is_code and not line.lstrip().startswith(("|", "!", "[")):
                    yield path, f"has a line of {len(line)} characters, at most {DOCS_WIDTH_MAX}"
                    break


def loose_contracts(sources: Sources) -> Found:
    """Packages with two or more folders whose import order no exhaustive contract holds."""
    listed = (
        tomllib.loads(sources.get("pyproject.toml", "")).get("tool", {}).get("importlinter", {}).get("contracts", [])
    )
    held = {name for contract in listed if contract.get("exhaustive") for name in contract["containers"]}
    packages = {
        str(PurePosixPath(path).parent) for path in sources if path.startswith("src/penstock/") and path.endswith(".py")
    }
    for package in sorted(packages):
        dotted = package.removeprefix("src/").replace("/", ".")
        folders = sum(str(PurePosixPath(other).parent) == package for other in packages)
        if folders > 1 and dotted not in held and dotted not in INDEPENDENT:
            yield dotted, "has folders and no exhaustive layers contract in pyproject.toml"


def over_budget(sources: Sources) -> Found:
    """More code than was agreed. Raise a budget on purpose, with the reason in the commit."""
    counts = {
        path: len(text.splitlines())
        for path, text in sources.items()
        if path.startswith("src/") and path.endswith(".py")
    }
    bench = sum(count for path, count in counts.items() if path.startswith(BENCH))
    rest = sum(counts.values()) - bench
    if rest > SRC_LINES_MAX:
        yield "src", f"{rest} lines without bench/, at most {SRC_LINES_MAX}"
    if bench > BENCH_LINES_MAX:
        yield "bench", f"{bench} lines, at most {BENCH_LINES_MAX}"


RULES: dict[str, Callable[[Sources], Found]] = {
    rule.__name__: rule
    for rule in (
        crowded_folders,
        prefixed_siblings,
        odd_sizes,
        repeated_classes,
        gerund_modules,
        repeated_modules,
        banned_identifiers,
        silent_defaults,
        prefix_dispatch,
        missing_mirrors,
        old_names,
        dead_mentions,
        coy_prose,
        long_lines,
        loose_contracts,
        over_budget,
    )
}


def allowed() -> dict[str, list[str]]:
    """The exceptions of each rule."""
    return tomllib.loads(ALLOWED.read_text(encoding="utf-8")) if ALLOWED.exists() else {}


def judge(sources: Sources, exceptions: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """For each rule what breaks it without being allowed, and what is allowed without breaking it."""
    verdicts: dict[str, list[str]] = {}
    for name, rule in RULES.items():
        excused = set(exceptions.get(name, ()))
        found = list(rule(sources))
        lines = [f"{what}: {message}" for what, message in found if what not in excused]
        stale = sorted(excused - {what for what, _ in found})
        lines += [f"{what}: is in allowed.toml and breaks nothing; remove it" for what in stale]
        verdicts[name] = lines
    return verdicts


def write_allowed(entries: Mapping[str, list[str]]) -> None:
    """Write the allow-list, one entry a line."""
    parts = [
        "# What may break a rule of `layout.py` for now. This list only shrinks: an entry that is not needed fails.\n"
    ]
    for name in RULES:
        if entries.get(name):
            lines = "".join(f'    "{what}",\n' for what in sorted(entries[name]))
            parts.append(f"{name} = [\n{lines}]\n")
    ALLOWED.write_text("\n".join(parts), encoding="utf-8")


def tree() -> dict[str, str]:
    """Every text file that rules read, by its path."""
    from tests.tidy.test_tidy import read, repository

    kinds = (".py", ".md", ".ts", ".tsx", ".toml")
    return {path: read(path) or "" for path in repository() if path.endswith(kinds)}


def main(words: list[str]) -> int:
    """Print what is wrong, or rewrite the allow-list."""
    sources = tree()
    current = {name: sorted({what for what, _ in rule(sources)}) for name, rule in RULES.items()}
    if "--shrink" in words:
        past = allowed()
        write_allowed({name: [what for what in past.get(name, []) if what in found] for name, found in current.items()})
    elif "--rewrite" in words:
        write_allowed(current)
    bad = [f"{name}: {line}" for name, lines in judge(sources, allowed()).items() for line in lines]
    print("\n".join(bad) or "every rule holds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
