"""Orders of an epoch: keyed permutations computed at any position, and explicit ones."""
