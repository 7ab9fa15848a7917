"""What a run has done: its ledger, its states, their files, and how they are read. Imports no Ray."""
