"""Who may attend to whom. True means "may attend", everywhere in Clearhead.

A `Mask` is a small description, not a matrix: `Mask.causal() & Mask.padding(lengths)` holds a few
numbers, and any tile of the queries × keys matrix is computed when somebody asks for it. Other
libraries want other polarities and shapes; the `to_*` methods convert explicitly.

    mask         Mask: built by name, combined, asked, converted, drawn
    kinds        what a mask can be: a band, padding, any matrix, two masks joined
    for_kernels  a mask in the few numbers that a fused kernel understands
"""

from clearhead.masks.for_kernels import as_band
from clearhead.masks.mask import Mask, as_mask

__all__ = ["Mask", "as_band", "as_mask"]
