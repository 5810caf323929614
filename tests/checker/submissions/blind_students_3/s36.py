# expect: attends-across-batch
# why: Line 10: nn.MultiheadAttention is made without batch_first=True but is fed (batch, seq, embed), so it attends over the batch axis: samples see each other and tokens of one sentence do not interact.
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


class TransformerBlock(nn.Module):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1):
        super().__init__()
        self.att = nn.MultiheadAttention(embed_dim, num_heads, dropout=rate)
        self.ffn = nn.Sequential(
            nn.Linear(embed_dim, ff_dim),
            nn.ReLU(),
            nn.Linear(ff_dim, embed_dim),
        )
        self.layernorm1 = nn.LayerNorm(embed_dim, eps=1e-6)
        self.layernorm2 = nn.LayerNorm(embed_dim, eps=1e-6)
        self.dropout1 = nn.Dropout(rate)
        self.dropout2 = nn.Dropout(rate)

    def forward(self, inputs):
        # inputs: (batch, seq_len, embed_dim)
        attn_output, _ = self.att(inputs, inputs, inputs)
        out1 = self.layernorm1(inputs + self.dropout1(attn_output))
        ffn_output = self.ffn(out1)
        return self.layernorm2(out1 + self.dropout2(ffn_output))


class TokenAndPositionEmbedding(nn.Module):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = nn.Embedding(vocab_size, embed_dim)
        self.pos_emb = nn.Embedding(maxlen, embed_dim)

    def forward(self, x):
        positions = torch.arange(x.size(1), device=x.device)
        return self.token_emb(x) + self.pos_emb(positions)


class TimeSeriesOrTextClassifier(nn.Module):
    def __init__(self, maxlen=100, vocab_size=5000, embed_dim=32, num_heads=2, ff_dim=32):
        super().__init__()
        self.emb = TokenAndPositionEmbedding(maxlen, vocab_size, embed_dim)
        self.block = TransformerBlock(embed_dim, num_heads, ff_dim)
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(embed_dim, 20), nn.ReLU(), nn.Linear(20, 2))

    def forward(self, x):
        x = self.emb(x)
        x = self.block(x)
        x = x.mean(dim=1)      # global average pooling over the tokens
        return self.head(x)


def train_one_epoch(model, loader, opt, loss_fn):
    model.train()
    total = 0.0
    for xb, yb in loader:
        opt.zero_grad()
        loss = loss_fn(model(xb), yb)
        loss.backward()
        opt.step()
        total += loss.item()
    return total / len(loader)


if __name__ == "__main__":
    X = torch.randint(0, 5000, (64, 100))
    y = torch.randint(0, 2, (64,))
    loader = DataLoader(TensorDataset(X, y), batch_size=16, shuffle=True)
    model = TimeSeriesOrTextClassifier()
    print(train_one_epoch(model, loader, optim.Adam(model.parameters()), nn.CrossEntropyLoss()))
