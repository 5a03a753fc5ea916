"""One module for each operation that HTTP and Control v1 share. Knows no session: an operation returns an outcome."""
