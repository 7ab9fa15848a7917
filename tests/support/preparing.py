"""A chunk prepared without Ray, and what its shards hold."""

import json
from itertools import pairwise

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from raypack.data.formats.inputs import find_inputs
from raypack.data.ingest.choose_reader import choose_reader
from raypack.data.ingest.chunk_task import prepare_chunk
from raypack.data.ingest.chunks import cut_chunks
from raypack.data.ingest.options import PrepareOptions
from raypack.source.paths.location import locate
from raypack.source.store.shards import map_shard


def prepare_file(path, out, tokenizer=None, **options):
    """Prepare the one chunk of an input."""
    files, options = find_inputs(path), PrepareOptions(**options)
    [chunk] = cut_chunks(files, 1 << 30)
    return prepare_chunk(chunk, str(out), choose_reader(files, tokenizer or "bytes", options), options)


def examples_of(folder, result):
    """Return ids and labels (None where there are none) of each example of a chunk's shards."""
    assert result.fault is None, result.fault
    examples = []
    for entry in result.shards:
        for columns in (("input_ids", "labels"), ("input_ids",)):
            try:
                shard = map_shard(locate(folder).child(entry.file), entry, columns)
                break
            except ValueError:
                continue
        edges = [0, *shard.ends.tolist()]
        for a, b in pairwise(edges):
            labels = None if shard.labels is None else shard.labels[a:b].tolist()
            examples.append((shard.input_ids[a:b].tolist(), labels))
    return examples


def nonzero(result):
    """Return the counts that are not 0, without the bytes."""
    return {name: n for name, n in result.counts.to_dict().items() if n and name != "bytes"}


def write_rows(path, rows):
    """Write rows as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat_folder(folder, template=CHATML):
    """Make a folder of transformers with a byte-level BPE tokenizer and a chat template."""
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(
        ["Say hello, Paris. The answer is Paris. assistant user system"] * 3, trainer
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
