"""Control v1, the line protocol: frames in, answers and deliveries out. It knows no transport."""
