"""What administrators read and change at run time: journal, tables, tokens, spaces, config. Knows no HTTP route."""
