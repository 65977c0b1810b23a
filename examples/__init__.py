"""Examples around the product, which imports none of them: see the README of each."""
