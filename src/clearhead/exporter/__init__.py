"""A module as one file that runs without Clearhead: ONNX, or torch's own format."""
