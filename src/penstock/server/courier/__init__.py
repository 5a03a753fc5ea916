"""courier."""
