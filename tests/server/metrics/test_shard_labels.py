"""Metrics of several shards in one text."""

from penstock.server.metrics.shard_labels import merge_texts

OWN = "# HELP a A.\n# TYPE a counter\na_total 1.0\n"
SHARD = '# HELP a A.\n# TYPE a counter\na_total 2.0\na_total{x="}"} 3.0\n# HELP b B.\n# TYPE b gauge\nb 4.0\n'


def test_samples_of_shards_get_a_label_and_stay_in_their_family() -> None:
    assert merge_texts(OWN, {5: SHARD}).splitlines() == [
        "# HELP a A.",
        "# TYPE a counter",
        "a_total 1.0",
        'a_total{shard="5"} 2.0',
        'a_total{shard="5",x="}"} 3.0',
        "# HELP b B.",
        "# TYPE b gauge",
        'b{shard="5"} 4.0',
    ]
