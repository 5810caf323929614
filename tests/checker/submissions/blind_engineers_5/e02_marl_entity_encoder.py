# expect: correct
# why: right though unscaled: cosine attention with a learnt temperature; True in both masks means hidden
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class EntityAttention(nn.Module):
    """
    Attention among the entities of a scene (agents, enemies, obstacles).

    Queries and keys are normalised, their cosine is multiplied with a learnt temperature per head;
    there is no division by sqrt(d). Entities that do not exist in this step are never looked at.
    """

    def __init__(self, d_model, n_heads, max_temperature=100.0):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.in_trans = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out_trans = nn.Linear(d_model, d_model)
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(n_heads, 1, 1)))
        self.max_log = math.log(max_temperature)

    def forward(self, entities, obs_mask, ent_mask, n_agents):
        """
        entities: (bs, ne, d_model)
        obs_mask: (bs, n_agents, ne), 1 if agent i can not see entity j
        ent_mask: (bs, ne), 1 if the entity does not exist
        returns   (bs, n_agents, d_model), the first n_agents entities are the agents
        """
        bs, ne, d = entities.shape
        q, k, v = self.in_trans(entities).chunk(3, dim=-1)
        q = q[:, :n_agents].reshape(bs, n_agents, self.n_heads, -1).transpose(1, 2)
        k = k.reshape(bs, ne, self.n_heads, -1).transpose(1, 2)
        v = v.reshape(bs, ne, self.n_heads, -1).transpose(1, 2)

        logits = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        logits = logits * self.logit_scale.clamp(max=self.max_log).exp()

        hidden = obs_mask.bool() | ent_mask.bool()[:, None, :]
        logits = logits.masked_fill(hidden[:, None], -float('inf'))
        weights = F.softmax(logits, dim=-1)
        # an agent that sees nothing at all gets a zero vector
        weights = weights.masked_fill(hidden.all(-1)[:, None, :, None], 0.0)
        out = (weights @ v).transpose(1, 2).reshape(bs, n_agents, d)
        out = self.out_trans(out)
        return out.masked_fill(ent_mask.bool()[:, :n_agents, None], 0.0)


class EntityAgent(nn.Module):
    """Recurrent agent network on top of entity attention, shared by all the agents."""

    def __init__(self, entity_dim, n_actions, d_model=32, n_heads=4, rnn_hidden=24):
        super().__init__()
        self.fc1 = nn.Linear(entity_dim, d_model)
        self.attn = EntityAttention(d_model, n_heads)
        self.fc2 = nn.Linear(d_model, rnn_hidden)
        self.rnn = nn.GRUCell(rnn_hidden, rnn_hidden)
        self.fc3 = nn.Linear(rnn_hidden, n_actions)
        self.rnn_hidden = rnn_hidden

    def init_hidden(self, bs, n_agents):
        return self.fc1.weight.new_zeros(bs, n_agents, self.rnn_hidden)

    def forward(self, entities, obs_mask, ent_mask, hidden, avail_actions=None):
        bs, n_agents, _ = hidden.shape
        x1 = F.relu(self.fc1(entities))
        x2 = self.attn(x1, obs_mask, ent_mask, n_agents)
        x3 = F.relu(self.fc2(x2))
        h = self.rnn(x3.reshape(bs * n_agents, -1), hidden.reshape(bs * n_agents, -1))
        q = self.fc3(h).view(bs, n_agents, -1)
        if avail_actions is not None:
            q = q.masked_fill(avail_actions == 0, -1e10)
        return q, h.view(bs, n_agents, -1)
