"""What a study can run on: a file a kind of device."""
