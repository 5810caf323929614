"""Attention maps: exact weights and statistics of attention that was never built as a matrix."""

from clearhead.maps.attention_map import AttentionMap
from clearhead.maps.results import Distance, Summary, Top

__all__ = ["AttentionMap", "Distance", "Summary", "Top"]
