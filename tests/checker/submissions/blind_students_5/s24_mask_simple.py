# expect: correct
# why: right though unusual: the mask is multiplied after the softmax, but the rows are normalized again, which equals masking with -inf before
# 3.5.1 applying a causal attention mask (first version, multiply + normalize again)
import torch

torch.manual_seed(789)


def get_context(x, W_query, W_key, W_value):
    queries = x @ W_query
    keys = x @ W_key
    values = x @ W_value

    attn_scores = queries @ keys.transpose(-2, -1)
    attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
    print("attn_weights", attn_weights.shape)

    context_length = attn_scores.shape[-1]
    mask_simple = torch.tril(torch.ones(context_length, context_length, dtype=x.dtype))
    masked_simple = attn_weights * mask_simple

    row_sums = masked_simple.sum(dim=-1, keepdim=True)
    masked_simple_norm = masked_simple / row_sums
    return masked_simple_norm @ values, masked_simple_norm


if __name__ == "__main__":
    x = torch.rand(6, 3)
    Wq, Wk, Wv = torch.rand(3, 2), torch.rand(3, 2), torch.rand(3, 2)
    ctx, w = get_context(x, Wq, Wk, Wv)
    print(w)
    print(ctx)
    # TODO: compare with the -inf version on the next page
