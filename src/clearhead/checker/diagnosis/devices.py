"""Where a recorded pass would fail if its inputs and weights were on a GPU."""

from dataclasses import dataclass

from clearhead.checker.diagnosis.program import Program, Values, registers_in
from clearhead.checker.sandbox.answers import Call

# The first argument determines the device: indices and values may be on the CPU.
_BY_FIRST = {"__getitem__", "__setitem__", "copy_", "expand_as", "view_as", "reshape_as"}
_MOVES = {"to", "type_as"}


@dataclass(frozen=True)
class Meeting:
    """A call that combines a tensor on the CPU with one on the GPU.

    Args:
        made: The call that created the CPU tensor.
        at: The call that combines the two.
        shape: The shape of the CPU tensor.
    """

    made: Call
    at: Call
    shape: tuple[int, ...]


def first_meeting(program: Program, values: Values) -> Meeting | None:
    """The first call that fails on a GPU because a tensor was created without a device.

    Tensors that are neither inputs nor parameters, such as buffers, may be on any device.

    Args:
        program: The recorded pass.
        values: The values of every register, for one run of it.
    """
    recording = program.recording
    there = {leaf.register for leaf in recording.leaves if leaf.kind in ("input", "parameter")}
    made: dict[int, Call] = {}  # the registers on the CPU, and the calls that created them
    for call in recording.calls:
        arguments = (*call.args, *call.kwargs.values())
        read = [register for value in arguments for register in registers_in(value)]
        placed = {"device": True} in arguments or "device" in call.kwargs
        on_cpu = [r for r in read if r in made]
        if placed or call.name == "cuda":
            found = None
        elif not read:
            found = call
        elif call.name in _BY_FIRST:
            found = made.get(read[0])
        elif call.name in _MOVES and len(read) > 1:
            found = made.get(read[1])
        else:
            wide = [r for r in on_cpu if r in values and values[r].ndim]  # scalars may mix devices
            if wide and there.intersection(read):
                return Meeting(made[wide[0]], call, tuple(values[wide[0]].shape))
            found = made[on_cpu[0]] if on_cpu and not there.intersection(read) else None
        for out in call.out:
            made.pop(out, None)  # `to` may return the tensor itself
            if found is not None:
                made[out] = found
            elif placed or call.name == "cuda" or there.intersection(read):
                there.add(out)
    return None
