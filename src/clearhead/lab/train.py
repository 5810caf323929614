"""The former name of `clearhead.lab.distributed_training`, for existing scripts."""

import warnings

from clearhead.lab.distributed_training import main

if __name__ == "__main__":
    warnings.warn(
        "clearhead.lab.train is now clearhead.lab.distributed_training: "
        "use torchrun -m clearhead.lab.distributed_training",
        DeprecationWarning,
        stacklevel=1,
    )
    main()
