"""Lengths, windows or matrices -> a `Mask`. True means "may attend" everywhere in Clearhead.

A `Mask` describes a matrix without holding it: `Mask.causal() & Mask.padding(lengths)` is a few
numbers, and any tile of the queries × keys matrix is computed on request. Other libraries use other
polarities and shapes; the `to_*` methods convert. Start reading at `mask.Mask`; the kinds of mask
follow it in the same file. `kernel_form` turns a mask into the arguments of a fused kernel.
"""

from clearhead.masks.kernel_form import as_band
from clearhead.masks.mask import Band, Mask, Padding, as_mask

__all__ = ["Band", "Mask", "Padding", "as_band", "as_mask"]
