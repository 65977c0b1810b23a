"""Programs that measure the product, which imports none of them: see the README."""
