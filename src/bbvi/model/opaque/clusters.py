"""Workers on the machines of a cluster, for simulators that keep more than one machine busy: Ray and Dask."""

import importlib
from typing import Any

from bbvi.model.opaque.workers import Workers


def on_ray(*, retries: int = 3, seconds: float | None = None, **options: Any) -> Workers:
    """Make the calls of an opaque function on a Ray cluster: `bbvi.opaque(simulator, executor=bbvi.on_ray())`.

    The cluster is the one that `ray.init` was called for; if it was not, Ray starts or finds one as it usually does. bbvi must
    be installed on its machines. Functions of a script or a notebook travel as they are.

    Args:
        retries: how many times calls are made again whose worker or machine was lost.
        seconds: how long a chunk of calls may take, the wait for a free worker included, before the fit stops with an error;
            default any time.
        options: further options of `ray.remote`, such as `num_cpus=2`.
    """
    _check("on_ray", retries, seconds)
    ray = _needed("ray", "on_ray")
    remote = ray.remote(max_retries=retries, **options)(_call)

    def num_workers() -> int:
        return max(1, int(ray.cluster_resources().get("CPU", 1) / max(options.get("num_cpus", 1), 0.01)))

    return Workers(lambda *call: remote.remote(*call).future(), num_workers, ray.cloudpickle.dumps, seconds)


def on_dask(client: Any, *, retries: int = 3, seconds: float | None = None) -> Workers:
    """Make the calls of an opaque function on a Dask cluster: `bbvi.opaque(simulator, executor=bbvi.on_dask(client))`.

    `client` is a `dask.distributed.Client`. bbvi must be installed on the workers. Functions of a script or a notebook travel as
    they are. Dask moves calls whose worker was lost to another one.

    Args:
        retries: how many times a chunk of calls is made again that failed on its way.
        seconds: how long a chunk of calls may take, the wait for a free worker included, before the fit stops with an error;
            default any time.
    """
    _check("on_dask", retries, seconds)
    distributed = _needed("distributed", "on_dask")
    if not isinstance(client, distributed.Client):
        raise TypeError(f"bbvi.on_dask takes a dask.distributed.Client, got {type(client).__name__}")

    def submit(*call: Any) -> Any:
        return client.submit(_call, *call, pure=False, retries=retries)

    dumps = importlib.import_module("cloudpickle").dumps
    return Workers(submit, lambda: max(1, sum(client.nthreads().values())), dumps, seconds)


def _call(work: Any, *arguments: Any) -> Any:
    return work(*arguments)


def _needed(library: str, asked: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ImportError(f"bbvi.{asked} needs the library {library}: python -m pip install {library}") from error


def _check(asked: str, retries: int, seconds: float | None) -> None:
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ValueError(f"bbvi.{asked}: retries must be an integer of 0 or more, got {retries!r}")
    if seconds is not None and not seconds > 0:
        raise ValueError(f"bbvi.{asked}: seconds must be positive, got {seconds!r}")
