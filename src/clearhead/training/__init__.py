"""Training: one loop, its checkpoints, and runs over several seeds."""
