"""From documents to the tensors of a batch: shapes, placing on the host and on a device."""
