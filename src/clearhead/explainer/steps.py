"""The six steps of attention, computed in plain PyTorch and written down one by one.

The steps are numbered the same for every form, so that they can be compared; a form shows only
those it has:

    1 PROJECT      queries, keys, values
    2 SPLIT        queries_split, keys_split, values_split
    3 TRANSPOSE    queries_heads, keys_heads, values_heads
       3a NORM     queries_normed, keys_normed           (qk_norm only)
       3b ROTATE   queries_rotated, keys_rotated         (rope only)
       3c REPEAT   keys_repeated, values_repeated        (fewer key heads than query heads only)
    4 ATTENTION    4a attn_scores, 4b masked_scores, 4c scaled_scores and attn_weights,
                   4d context_heads (context_vec where there is one head)
    5 CONCAT       context_vec
    6 PROJECT      output

The wrapper's step 1 gives queries_heads, keys_heads and values_heads at once. No code is shared
with the modules that are followed: that two computations agree is what a trace shows.

    step         Step: what one step is, and how it is shown
    shared       what the forms share: masks, projecting, attending
    computation  Computation: the steps of each form
"""

from clearhead.explainer.computation import Computation
from clearhead.explainer.shared_steps import LINEARS, PAPER_LINEARS
from clearhead.explainer.step import Step, show_dims

__all__ = ["LINEARS", "PAPER_LINEARS", "Computation", "Step", "show_dims"]
