"""A decoder of torch's own layers, of any size: logits for the next word at every position."""

from torch import Tensor, nn


class Decoder(nn.Module):
    """Words, places, blocks that look back only, a head."""

    def __init__(self, vocabulary: int, width: int, layers: int, length: int, heads: int = 4):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("ahead", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, T) -> (n, T, vocabulary)."""
        x = self.words(tokens) + self.places.weight
        return self.head(self.norm(self.blocks(x, mask=self.ahead)))
