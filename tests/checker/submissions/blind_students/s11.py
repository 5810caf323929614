# expect: padding-inverted
# why: attention_mask has 1 for real tokens, but key_padding_mask of nn.MultiheadAttention hides the True positions, so the real tokens are hidden.
import torch
import torch.nn as nn

PAD = 0


class TextEncoderLayer(nn.Module):
    """
    Sentiment homework. attention_mask comes from the tokenizer:
        1 = real token
        0 = padding
    """

    def __init__(self, d_model=16, nhead=4, dropout=0.1):
        super().__init__()
        self.mha = nn.MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=True)

    def forward(self, x, attention_mask=None):
        if attention_mask is not None:
            attention_mask = attention_mask.bool()
        out, _ = self.mha(x, x, x, key_padding_mask=attention_mask, need_weights=False)
        return out


def make_mask(ids):
    return (ids != PAD).long()


if __name__ == "__main__":
    ids = torch.tensor([[4, 8, 1, 9, 0, 0], [3, 3, 7, 0, 0, 0]])
    emb = nn.Embedding(10, 16, padding_idx=PAD)
    layer = TextEncoderLayer()
    print(layer(emb(ids), make_mask(ids)).shape)
