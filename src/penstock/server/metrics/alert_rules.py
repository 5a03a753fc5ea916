"""Alert rules for Prometheus, printed from `templates/alert_rules.yaml`.

A rule names a metric as `@name`, which becomes the name of its samples. A name that the server does not export cannot be printed.
"""

# size: the rules themselves are in the template.

from __future__ import annotations

import re
from pathlib import Path

from penstock.server.metrics.metric_names import BY_NAME

_NAME = re.compile(r"@(\w+)")


def expression(text: str) -> str:
    """A text with the names of the samples in place of `@name`."""
    return _NAME.sub(lambda match: BY_NAME[f"penstock_{match[1]}"].sample, text)


def alert_rules() -> str:
    """The rules as a file that Prometheus loads."""
    return expression((Path(__file__).parent / "templates" / "alert_rules.yaml").read_text("utf-8"))
