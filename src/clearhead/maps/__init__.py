"""Attention maps: exact weights and statistics of attention that was never built as a matrix.

An `AttentionMap` is a `Display` (what people see of it), which is a `LazyWeights` (its numbers).

    attention_map  AttentionMap: indexing, choosing, statistics
    lazy_weights   the scores, normalisers and weights below it, computed where somebody looks
    positions      where its queries stand among its keys
    indexing       what m[0, 3, 10:20] means
    cells          the map in cells: shares of attention, for a picture or a part of one
    summary        what statistics give: Summary, Top, Distance
    display        page, figure, notebook and terminal: the methods
    pictures       the same: what they are made of
"""

from clearhead.maps.attention_map import AttentionMap
from clearhead.maps.summary import Distance, Summary, Top

__all__ = ["AttentionMap", "Distance", "Summary", "Top"]
