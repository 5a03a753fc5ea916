"""Metrics of several shards in one text for Prometheus: each sample of a shard gets a label with its number."""
# size: one function on text

from __future__ import annotations

from collections.abc import Mapping


def _families(text: str) -> dict[str, tuple[list[str], list[str]]]:
    """Comments and samples by the name of their family."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    comments: list[str] = []
    samples: list[str] = []
    for line in text.splitlines():
        if line.startswith("# "):
            name = line.split(" ", 3)[2]
            comments, samples = families.setdefault(name, ([], []))
            comments.append(line)
        elif line:
            samples.append(line)
    return families


def _labelled(sample: str, shard: int) -> str:
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{shard="{shard}",{rest}'
    name, space, value = sample.partition(" ")
    return f'{name}{{shard="{shard}"}}{space}{value}'


def merge_texts(own: str, shards: Mapping[int, str]) -> str:
    """The metrics of the server itself, then those of its shards, family by family."""
    merged = _families(own)
    for shard, text in shards.items():
        for name, (comments, samples) in _families(text).items():
            _, known = merged.setdefault(name, (comments, []))
            known += [_labelled(sample, shard) for sample in samples]
    lines = [line for comments, samples in merged.values() for line in (*comments, *samples)]
    return "\n".join([*lines, ""])
