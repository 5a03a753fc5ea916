"""Several cells in one server: the front that clients meet, legs to the cells, and the processes that run them."""
