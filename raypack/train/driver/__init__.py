"""What raypack does in the driver, around a fit of Ray Train."""
