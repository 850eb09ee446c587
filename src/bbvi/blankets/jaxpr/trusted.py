"""Tell which functions of libraries are trusted to be continuous, though their operations do not show it."""

from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr

from bbvi.blankets.jaxpr.lines import BBVI, EQUINOX, JAX, NUMPYRO, frames_of
from bbvi.blankets.jaxpr.primitives import CUSTOM, closed_trace, words

#: functions of JAX that are continuous and have the right derivative, though they use such operations
_TRUSTED = words(
    "logsumexp softmax log_softmax logmeanexp standardize elu selu celu leaky_relu hard_tanh sparse_plus ndtr ndtri log_ndtr "
    "entr rel_entr kl_div betaln xlogy xlog1py sinc i0 i1 logpdf logcdf logsf solve inv det slogdet lu_solve norm hypot odeint"
)
#: by these numpyro's densities tell cases apart, such as the tails; they are continuous all the same
_CASES = words("eq ne lt le gt ge is_finite rem sign stop_gradient select_n atan2")


#: where an operation was written and the compiled function around it; then the same for the calls around that, innermost first
Calls = tuple[tuple[Any, str | None], ...]


def is_trusted(name: str, where: Calls, forgiven: bool = True) -> bool:
    """Tell whether a trusted function of JAX did this that it may do, or a density of numpyro that tells cases apart."""
    if _is_derivative(where):
        return False
    own, outside = _written_in(where)
    if own & _TRUSTED:
        return forgiven or "odeint" in own  # whose steps are of no matter
    if outside is None or not outside.file_name.startswith(NUMPYRO):
        return False
    is_density = not outside.file_name.endswith("constraints.py")
    return is_density and not outside.function_name.split(".")[-1].startswith("sample") and name in _CASES


def is_written_in(function: str, where: Calls) -> bool:
    """Tell whether this function of JAX did this."""
    return not _is_derivative(where) and function in _written_in(where)[0]


def has_own_derivatives(jaxpr: Jaxpr) -> bool:
    """Tell whether a trace calls a function with a derivative rule that is not of JAX, its libraries or this one."""
    for eqn in jaxpr.eqns:
        inner = [trace for value in eqn.params.values() if (trace := closed_trace(value)) is not None]
        if eqn.primitive.name in CUSTOM and not all(map(_is_of_libraries, inner)):
            return True
        branches = [closed_trace(branch) for branch in eqn.params.get("branches", ())]
        if any(has_own_derivatives(trace.jaxpr) for trace in (*inner, *branches) if trace is not None):
            return True
    return False


def _is_of_libraries(trace: ClosedJaxpr) -> bool:
    info = getattr(trace.jaxpr, "debug_info", None)
    file = str(getattr(info, "func_src_info", "")).rpartition(" at ")[2]
    return file.startswith((JAX, EQUINOX, NUMPYRO, BBVI))


def _written_in(where: Calls) -> tuple[set[str], Any]:
    """Return the functions of JAX that did this, and the innermost frame that is not JAX's."""
    own: set[str] = set()
    for frame in _frames(where):
        if not frame.file_name.startswith(JAX):
            return own, frame
        own.add(frame.function_name)
    return own, None


def _is_derivative(where: Calls) -> bool:
    """Tell whether a derivative is computed by this: that of a continuous function may jump."""
    return any("jvp(" in str(source.name_stack) for source, _ in where)


def _frames(where: Calls) -> Iterator[Any]:
    """List the functions that led here, innermost first.

    A compiled function was traced where it was first called: what lies outside of it is that of its call here.
    """
    for source, function in where:
        frames = frames_of(source)
        if function is not None:
            own = [i for i, frame in enumerate(frames) if frame.function_name.endswith(function)]
            ends = [i for i, frame in enumerate(frames) if frame.file_name.endswith("pjit.py")]
            frames = frames[: next((i for i in ends if not own or i > own[0]), len(frames))]
        yield from frames
