"""The parts of benchmarks/scale.py: what is measured, how, and the page that is made of it."""
