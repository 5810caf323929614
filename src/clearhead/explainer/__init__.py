"""The six steps of attention: trace(), and what `clearhead explain` and `clearhead play` show.

Enters: a module and its input, or a text. Leaves: a `Trace`, which has every step with its numbers,
shown in the terminal, as JSON, as a page or as a script. Start reading at `steps`.

    steps          Step, and the computation of each form's steps
    tracing        trace() and Trace: the steps of one forward pass, compared with the module itself
    examples       a text -> a module, its input and its trace
    one_query      one token followed through all steps, as on paper
    presentation   an example in the terminal, as JSON, as a page, as a script
    play_page      the page that runs a model; its scripts are in assets/
"""

from clearhead.explainer.tracing import Trace, trace

__all__ = ["Trace", "trace"]
