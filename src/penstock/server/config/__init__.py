"""The config file: its sections, validation, cross-checks and reference. Knows no runtime and opens no socket."""
