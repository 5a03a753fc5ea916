"""A generator of text that needs no model: each word is drawn from those that may follow the one before it."""

import random
from collections.abc import Iterator

WORDS = {
    "the": ("river", "wheel", "gate", "miller", "water"),
    "river": ("rises", "turns", "waits"),
    "wheel": ("turns", "rests"),
    "gate": ("opens", "holds", "waits"),
    "miller": ("opens", "waits", "sings"),
    "water": ("rises", "falls", "turns"),
}
AFTER = ("and", "while", "until", "because")


def tokens(prompt: str, count: int) -> Iterator[str]:
    """So many words, the same ones for the same prompt."""
    dice = random.Random(prompt)
    word = "the"
    for _ in range(count):
        yield f"{word} "
        if word in WORDS:
            word = dice.choice(WORDS[word])
        else:
            word = "the" if word in AFTER else dice.choice(AFTER)
