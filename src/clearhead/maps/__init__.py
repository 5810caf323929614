"""Attention maps: exact weights and statistics of attention that was never built as a matrix.

Queries, keys, a mask and a scale enter; weights, statistics, pages and figures leave. Start reading
in `attention_map`; a statistic is added in `statistics`.

    attention_map  AttentionMap: thin methods over the functions below
    exact_weights  exact scores and weights at chosen positions
    statistics     the statistics, each a class that registers itself
    value_norms    the norms of the values, per head
    map_difference the difference of two maps
    positions      the positions of queries among the keys, and padding, derived from the mask
    head_patterns  the mean scores of a head, and the name of its pattern
    indexing       what m[0, 3, 10:20] means
    axis_labels    one label per query and per key
    grid_cells     sums of weights over the cells of a grid
    page_layers    a layer of an HTML page
    map_figures    a matplotlib figure
"""

from clearhead.maps.attention_map import AttentionMap, free_memory
from clearhead.maps.map_difference import Difference
from clearhead.maps.statistics import Distance, Saliency, Summary, Top

__all__ = ["AttentionMap", "Difference", "Distance", "Saliency", "Summary", "Top", "free_memory"]
