"""The stages of `make bench`: each beside its peer, in one run, on the same input."""
