# expect: softmax-over-batch
# why: Line 40: the energies have shape (src_len, batch) and the softmax is taken over dim=1, the batch, and not over the source positions (dim=0); weights of a sentence do not sum to 1 and depend on the other sentences of the batch.
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

SOS, EOS = 1, 2


class EncoderRNN(nn.Module):
    def __init__(self, vocab_size, hidden_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size)

    def forward(self, src):
        # src: (src_len, batch)
        outputs, hidden = self.gru(self.embedding(src))
        return outputs, hidden          # (src_len, batch, hid), (1, batch, hid)


class LuongAttn(nn.Module):
    """ method: 'dot' or 'general' """
    def __init__(self, method, hidden_size):
        super().__init__()
        if method not in ['dot', 'general']:
            raise ValueError(method, "is not an appropriate attention method.")
        self.method = method
        if method == 'general':
            self.attn = nn.Linear(hidden_size, hidden_size, bias=False)

    def score(self, hidden, encoder_outputs):
        if self.method == 'general':
            encoder_outputs = self.attn(encoder_outputs)
        return torch.sum(hidden * encoder_outputs, dim=2)

    def forward(self, hidden, encoder_outputs):
        # hidden (1, batch, hid), encoder_outputs (src_len, batch, hid)
        attn_energies = self.score(hidden, encoder_outputs)
        # normalize the energies to weights
        attn_weights = F.softmax(attn_energies, dim=1)
        context = (attn_weights.unsqueeze(2) * encoder_outputs).sum(dim=0)
        return context, attn_weights


class LuongAttnDecoder(nn.Module):
    def __init__(self, method, hidden_size, vocab_size, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.drop = nn.Dropout(dropout)
        self.gru = nn.GRU(hidden_size, hidden_size)
        self.attn = LuongAttn(method, hidden_size)
        self.concat = nn.Linear(hidden_size * 2, hidden_size)
        self.out = nn.Linear(hidden_size, vocab_size)

    def forward(self, token, hidden, encoder_outputs):
        emb = self.drop(self.embedding(token)).unsqueeze(0)     # (1, batch, hid)
        rnn_output, hidden = self.gru(emb, hidden)
        context, weights = self.attn(rnn_output, encoder_outputs)
        x = torch.tanh(self.concat(torch.cat((rnn_output.squeeze(0), context), dim=1)))
        return self.out(x), hidden, weights


def run(encoder, decoder, src, tgt, teacher_forcing=0.5):
    enc_out, hidden = encoder(src)
    tok = torch.full((src.size(1),), SOS, dtype=torch.long)
    loss = 0
    for t in range(tgt.size(0)):
        logits, hidden, _ = decoder(tok, hidden, enc_out)
        loss = loss + F.cross_entropy(logits, tgt[t])
        tok = tgt[t] if random.random() < teacher_forcing else logits.argmax(1)
    return loss / tgt.size(0)


if __name__ == '__main__':
    enc, dec = EncoderRNN(30, 16), LuongAttnDecoder('general', 16, 40)
    print(run(enc, dec, torch.randint(3, 30, (7, 4)), torch.randint(3, 40, (5, 4))))
