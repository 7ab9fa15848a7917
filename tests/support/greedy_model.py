"""The greedy rule in plain Python: the model that compiled planning is held against."""


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


def plain_ends(lengths, options):
    """Return where each batch of a sequence ends, a list; an example at a time."""
    padded, most = options.layout.value == "padded", options.maximum_examples
    ends, tokens, longest, examples = [], 0, 0, 0
    for place, length in enumerate(map(int, lengths)):
        tokens, longest, examples = tokens + length, max(longest, length), examples + 1
        cost = longest * examples if padded else tokens
        if cost > options.maximum_tokens or (most is not None and examples > most):
            ends.append(place)
            tokens, longest, examples = length, length, 1
    return [*ends, len(lengths)] if len(lengths) else []
