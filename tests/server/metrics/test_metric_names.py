"""Only named metrics are exported."""

from __future__ import annotations

import pytest

from penstock.server.metrics.metric_names import families


@pytest.mark.promise("Operations", "every metric has one name, kind and meaning, and a scrape has exactly those")
def test_what_is_not_named_cannot_be_exported() -> None:
    with pytest.raises(KeyError):
        families({"penstock_no_such": 1})
