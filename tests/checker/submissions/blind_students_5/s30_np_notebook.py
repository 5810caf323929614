# expect: softmax-over-queries
# why: softmax_naive sums over axis=0, right for the single word but for the matrix attn_scores it normalizes over the queries (columns) instead of the keys (line 21: `return np.exp(x) / np.exp(x).sum(axis=0)`; line 41: `attn_weights = softmax_naive(attn_scores / np.sqrt(keys.shape[-1]))`)
# %% [markdown]
# # Self-attention in pure numpy (notebook export)

# %%
import numpy as np
np.random.seed(123)

d_in, d_out = 3, 2
inputs = np.array([[0.43, 0.15, 0.89],
                   [0.55, 0.87, 0.66],
                   [0.57, 0.85, 0.64],
                   [0.22, 0.58, 0.33],
                   [0.77, 0.25, 0.10],
                   [0.05, 0.80, 0.55]])


# %%
def softmax_naive(x):
    return np.exp(x) / np.exp(x).sum(axis=0)


# %% first only for the second word, "journey"
W_query = np.random.rand(d_in, d_out)
W_key = np.random.rand(d_in, d_out)
W_value = np.random.rand(d_in, d_out)

query_2 = inputs[1] @ W_query
scores_2 = query_2 @ (inputs @ W_key).T
attn_weights_2 = softmax_naive(scores_2 / np.sqrt(d_out))
print("weights of word 2:", attn_weights_2, "sum", attn_weights_2.sum())


# %% now for all words at once
def self_attention(x, W_query, W_key, W_value):
    queries = x @ W_query
    keys = x @ W_key
    values = x @ W_value
    attn_scores = queries @ keys.T
    attn_weights = softmax_naive(attn_scores / np.sqrt(keys.shape[-1]))
    return attn_weights @ values


# %%
context = self_attention(inputs, W_query, W_key, W_value)
print(context.shape)
print(context)
