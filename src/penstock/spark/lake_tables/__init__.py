"""How the rows of each lake table are computed from journal rows: a module for a table, or for tables of the same rows.

Functions from DataFrame to DataFrame without state. Nothing here reads the journal, commits to a table or knows of queries.
"""
