"""The stream of one rank: planned blocks, read and delivered in order."""
