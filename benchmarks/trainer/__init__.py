"""What the trainer does on this machine, measured: see bench.py, the command."""
