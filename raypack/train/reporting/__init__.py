"""Reports: from a rank's files to one checkpoint in the run's storage."""
