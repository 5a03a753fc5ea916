"""The journal as a server runs it: recovery, writing and sealing. The format itself is in `penstock.journal`."""
