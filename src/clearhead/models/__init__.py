"""What `--model` means: the shipped model, a folder, a file or a name on the hub."""
