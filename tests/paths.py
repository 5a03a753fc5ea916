"""The root of the repository, for tests that read its files; tests move between folders, so none counts its own parents."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
