# expect: correct
# अध्याय 3 का गृहकार्य: मल्टी-हेड अटेंशन (weight split वाला)
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    """
    कारण-आधारित (causal) मल्टी-हेड अटेंशन।
    num_heads पहले, फिर आयाम।
    """

    def __init__(self, num_heads, d_in, d_out, context_length, dropout, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0, "d_out को num_heads से भाग जाना चाहिए"
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.d_out = d_out

        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        # True जहाँ देखना मना है
        self.register_buffer(
            "mask",
            ~torch.ones(context_length, context_length, dtype=torch.bool).tril(),
            persistent=False,
        )

    def _todo(self, t):
        # (b, T, d_out) -> (b, heads, T, head_dim): हर हेड को उसका हिस्सा
        b, T, _ = t.shape
        return t.reshape(b, T, self.num_heads, self.head_dim).permute(0, 2, 1, 3)

    def forward(self, x):
        b, T, _ = x.shape
        # query को पहले ही छोटा कर दिया, बाद में भाग देने की ज़रूरत नहीं
        q = self._todo(self.W_query(x)) * self.head_dim ** -0.5
        k = self._todo(self.W_key(x))
        v = self._todo(self.W_value(x))

        scores = q @ k.mT
        scores.masked_fill_(self.mask[:T, :T], float("-inf"))
        weights = self.dropout(torch.softmax(scores, dim=-1))

        ctx = (weights @ v).permute(0, 2, 1, 3).reshape(b, T, self.d_out)
        return self.out_proj(ctx)


if __name__ == "__main__":
    torch.manual_seed(123)
    x = torch.rand(2, 6, 3)
    mha = MultiHeadAttention(2, 3, 4, context_length=6, dropout=0.0)
    y = mha(x)
    print("आकार:", y.shape)
    # भविष्य बदलने से पहला टोकन नहीं बदलना चाहिए
    x2 = x.clone()
    x2[:, -1] = 0
    print(torch.allclose(y[:, 0], mha(x2)[:, 0]))
