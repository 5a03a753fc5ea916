"""Control v1 in front of several cells: each line goes to the cell of its stream, answers keep their order."""
