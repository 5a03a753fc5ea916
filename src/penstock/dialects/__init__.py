"""Pure dialects: each turns one protocol's bytes into calls of the core and back."""
