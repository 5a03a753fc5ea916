"""The queue machine: channels, leases, credits, dead letters and views as pure calls.

It knows records as opaque bytes and never a wire format, a clock or the medium of the journal.
"""
