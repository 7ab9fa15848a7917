"""Ray actors: node planners with the credit that paces the stream, and the rendezvous of ranks."""
