"""Training: one loop for any language-modelling task, on one process or many.

Enters: a `Task` (a fresh model, batches, an evaluation). Leaves: a trained model, its `Curve`, and
checkpoints to resume from. Start reading at `loop.train`; `distributed.train` is the same loop for
several processes.

    loop          train(): the steps, their learning rate, checkpoints
    distributed   the same on several processes
    text_corpus   anyone's text -> a vocabulary of its own, and token ids
    text_task     predict the next token of that text
    text_run      a run of `clearhead train --text`, and what its folder holds

The grammar's task is in `clearhead.lab.grammar_training`.
"""
