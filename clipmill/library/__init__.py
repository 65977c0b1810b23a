"""The library's face: what `import clipmill` gives, and what the commands call."""
