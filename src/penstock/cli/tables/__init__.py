"""Commands on the tables of the lake and the pipeline that fills them."""
