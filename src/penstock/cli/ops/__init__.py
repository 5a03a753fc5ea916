"""Commands of an operator: run, check, back up, watch and secure a server."""
