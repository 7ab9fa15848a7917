"""The greedy rule as a plain loop: the model that vectorised planning is held against."""


def greedy_batches(order, lengths, budget, limit=None, layout="packed"):
    """Return the batches of an order, lists of source indices."""
    batches, batch = [], []
    for index in order:
        grown = [*batch, index]
        longest = max(lengths[i] for i in grown)
        slots = sum(lengths[i] for i in grown) if layout == "packed" else len(grown) * longest
        if batch and (slots > budget or (limit is not None and len(grown) > limit)):
            batches.append(batch)
            grown = [index]
        batch = grown
    return [*batches, batch] if batch else batches
