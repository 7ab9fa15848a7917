"""The plan of a run's committed steps, made again from its ledger."""
