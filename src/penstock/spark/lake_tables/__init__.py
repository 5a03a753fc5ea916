"""How the rows of each lake table are computed from journal rows: one module a table, named after it.

Functions from DataFrame to DataFrame without state. Nothing here reads the journal, commits to a table or knows of queries.
"""
