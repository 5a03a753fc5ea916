"""Triggers: their definition, templates, scripts and administration. The engine that fires them is in `core/rules`."""
