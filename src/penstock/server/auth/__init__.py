"""Tokens and the guard of the listeners: who a peer is and where it may come from. Knows no route and no protocol."""
