"""From documents to batches: sources, tokenizer, packing, and the `Text` node that joins them."""

from wholestep.data.sources import open_source
from wholestep.data.text import Text, TextData, TrainStream
from wholestep.data.tokenizer import Tokenizer, load_pretrained, load_tokenizer

__all__ = ["Text", "TextData", "Tokenizer", "TrainStream", "load_pretrained", "load_tokenizer", "open_source"]
