"""The real operator on virtual time: what is around it, in one process and on one event loop."""
