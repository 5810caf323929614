"""Training: one loop for any language-modelling task, on one process or many.

Enters: a `Task` (a fresh model, batches, an evaluation). Leaves: a trained model, its `Curve`, and
checkpoints to resume from. Start reading at `loop.train`; `distributed.train` is the same loop for
several processes. The grammar's task is in `clearhead.lab.grammar_training`.
"""
