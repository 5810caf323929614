"""Side-by-side measurements, gated on equality: who computes something else is not timed."""
