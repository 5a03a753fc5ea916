"""`penstock cluster`: shards on one machine, and on several."""
