"""Records of samplers: one rank's, all ranks' together, and how they are read and checked."""
