"""The pure machines: values in, values out, time as an argument.

Nothing here may do I/O, read a clock, draw randomness or know a wire format.
"""
