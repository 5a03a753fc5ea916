"""Fan-out of frames inside one space: which member receives a frame, and what waits for each.

The protocol says *space*; here it is a *router* with *members* and *routes*, because nothing of MEW is known but the frame head.
"""
