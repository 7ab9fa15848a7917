"""How a loader follows a deal: global or by rank."""
