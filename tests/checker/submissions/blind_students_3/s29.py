# expect: scores-detached
# why: Line 37: the attention weights are detached (for plotting) and the detached tensor is used for the output (line 39), so no gradient reaches the query and key projections; they are never trained.
# In[1]:
import torch
import torch.nn as nn
import torch.nn.functional as F

device = 'cuda' if torch.cuda.is_available() else 'cpu'

# In[2]:
class VizAttention(nn.Module):
    """Multi-head self attention that remembers its last attention map for plotting heatmaps"""

    def __init__(self, emb, heads):
        super().__init__()
        self.emb, self.heads = emb, heads
        self.tokeys = nn.Linear(emb, emb, bias=False)
        self.toqueries = nn.Linear(emb, emb, bias=False)
        self.tovalues = nn.Linear(emb, emb, bias=False)
        self.unifyheads = nn.Linear(emb, emb)
        self.attn_map = None

    def forward(self, x):
        b, t, e = x.size()
        h = self.heads
        s = e // h

        keys = self.tokeys(x).view(b, t, h, s)
        queries = self.toqueries(x).view(b, t, h, s)
        values = self.tovalues(x).view(b, t, h, s)

        # fold heads into the batch dimension
        keys = keys.transpose(1, 2).contiguous().view(b * h, t, s)
        queries = queries.transpose(1, 2).contiguous().view(b * h, t, s)
        values = values.transpose(1, 2).contiguous().view(b * h, t, s)

        dot = torch.bmm(queries, keys.transpose(1, 2)) / (s ** 0.5)
        # detach so that it can be plotted with .numpy()
        self.attn_map = F.softmax(dot, dim=2).detach()

        out = torch.bmm(self.attn_map, values).view(b, h, t, s)
        out = out.transpose(1, 2).contiguous().view(b, t, s * h)
        return self.unifyheads(out)

    def heatmap(self, sample=0, head=0):
        t = self.attn_map.size(-1)
        return self.attn_map.view(-1, self.heads, t, t)[sample, head].cpu().numpy()

# In[3]:
class TransformerBlock(nn.Module):
    def __init__(self, emb, heads):
        super().__init__()
        self.attention = VizAttention(emb, heads)
        self.norm1 = nn.LayerNorm(emb)
        self.norm2 = nn.LayerNorm(emb)
        self.ff = nn.Sequential(nn.Linear(emb, 4 * emb), nn.ReLU(), nn.Linear(4 * emb, emb))

    def forward(self, x):
        x = self.norm1(self.attention(x) + x)
        return self.norm2(self.ff(x) + x)

# In[4]:
net = TransformerBlock(32, 4).to(device)
x = torch.randn(8, 12, 32).to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for i in range(3):
    loss = (net(x) - x.flip(1)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    print(i, loss.item())
print(net.attention.heatmap().shape)
