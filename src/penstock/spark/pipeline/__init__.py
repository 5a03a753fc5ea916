"""The pipeline: two streaming queries that fill the lake from the journal, and the alerts they raise.

Knows the lake, the source and the tables. It knows the server only as a URL to enqueue alerts to.
"""
