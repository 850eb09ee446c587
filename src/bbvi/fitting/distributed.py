"""Join processes on several machines, or on one, to fit one model together."""

import contextlib
import os
from collections.abc import Iterator

import jax
from jax.sharding import Mesh

from bbvi.numerics.mesh import AXIS

_SILENCE = 15  # seconds after which a process that says nothing counts as lost


@contextlib.contextmanager
def distributed(
    address: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> Iterator[Mesh]:
    """Join this process with the others of a run, and yield a mesh of all their devices, for `fit(..., mesh=)`.

    Every process runs the same program. Without arguments who they are is read from the environment: `MASTER_ADDR`, `MASTER_PORT`,
    `WORLD_SIZE` and `RANK`, or what SLURM and Open MPI set. Call it before anything else that uses JAX. A process that is lost ends the others.

    Args:
        address: host and port of the first process, such as `"10.0.0.1:1234"`.

    Examples:
        >>> import bbvi
        >>> def program(model, cohort):
        ...     with bbvi.distributed() as mesh:
        ...         return bbvi.fit(model, cohort, mesh=mesh, checkpoint="run.npz")
    """
    if address is None and "MASTER_ADDR" in os.environ:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '29500')}"
        num_processes, process_id = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        address, num_processes, process_id, heartbeat_timeout_seconds=_SILENCE, shutdown_timeout_seconds=_SILENCE
    )
    try:
        yield jax.make_mesh((jax.device_count(),), (AXIS,))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if isinstance(error, ValueError) and "Gloo" not in str(error):  # a transfer that was cut may be either
            raise
        raise RuntimeError(
            "this process lost another one of the run, or failed itself: start all of them again, with checkpoint= to go on from the last "
            f"that was written. {error}"
        ) from error  # and no farewell, which would wait for what is lost
    # nor after other errors: the other processes may be waiting elsewhere
    jax.distributed.shutdown()
