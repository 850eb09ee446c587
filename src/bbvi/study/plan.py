"""What a run of the study is asked to do, settled before it starts."""

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import bbvi
from bbvi.study.models import MODELS
from bbvi.study.simulate import NUM_PATIENTS
from bbvi.study.stages import fingerprint

SIZES = {"quick": 60, "default": 200, "full": NUM_PATIENTS}  # patients of the simulated cohort


@dataclass(frozen=True)
class Plan:
    """A run of the study.

    Attributes:
        size: "quick", "default" or "full".
        num_patients: of the simulated cohort; None takes the size's.
        num_factors: K; None takes each data set's own.
        seed: of the data, the splits and the fits.
        out: the folder for results and finished stages.
        models: names from `MODELS`.
        paper_settings: use the paper's hyperparameters instead of those each data set demands.
        data: a CSV file to study instead of the embedded data.
        patient, time, lab, value: its columns; `lab` and `value` for long form only.

    Examples:
        >>> Plan(size="quick").patients
        60
        >>> Plan(models=("Gama",))
        Traceback (most recent call last):
        ...
        ValueError: there is no model 'Gama'; did you mean 'Gamma'?
    """

    size: str = "default"
    num_patients: int | None = None
    num_factors: int | None = None
    seed: int = 0
    out: str = "study"
    models: tuple[str, ...] = tuple(MODELS)
    paper_settings: bool = False
    data: str | None = None
    patient: str = "patient"
    time: str = "time"
    lab: str | None = None
    value: str | None = None

    def __post_init__(self):
        if self.size not in SIZES:
            raise ValueError(f"size must be one of {list(SIZES)}, got {self.size!r}")
        if not self.models:
            raise ValueError(f"choose at least one model of {list(MODELS)}")
        for name in self.models:
            if name not in MODELS:
                model_named(name)
        if self.num_patients is not None and self.num_patients < 10:
            raise ValueError(f"the simulated cohort needs 10 patients or more, got {self.num_patients}")
        if self.num_factors is not None and self.num_factors < 1:
            raise ValueError(f"a model needs 1 factor or more, got {self.num_factors}")
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more, got {self.seed}")
        if self.data is not None and self.num_patients is not None:
            raise ValueError("the number of patients is that of the simulated cohort; a file of your own is used whole")

    @property
    def patients(self) -> int:
        """How many patients are simulated."""
        return SIZES[self.size] if self.num_patients is None else self.num_patients

    @property
    def needing_positive(self) -> list[str]:
        """The chosen models for which labs must be above 0."""
        return [name for name in self.models if MODELS[name].needs_positive]

    def fingerprint(self) -> str:
        """Return what tells this plan from any that could give other results: options, version, content of the data file."""
        options = {name: value for name, value in asdict(self).items() if name not in ("out", "data")}
        if self.data is not None:
            content = Path(self.data).read_bytes() if Path(self.data).is_file() else b""
            options["data"] = hashlib.sha256(content).hexdigest()
        return fingerprint({**options, "version": bbvi.__version__})


def model_named(name: str, among: Sequence[str] = tuple(MODELS)) -> str:
    """Return the model's name as the study writes it, given in any case.

    Examples:
        >>> model_named("gamma-ts")
        'Gamma-TS'
    """
    lowered = {known.lower(): known for known in among}
    if name.lower() in lowered:
        return lowered[name.lower()]
    close = [lowered[c] for c in difflib.get_close_matches(name.lower(), lowered, n=1)]
    hint = f"did you mean {close[0]!r}?" if close else f"the models are {', '.join(among)}"
    raise ValueError(f"there is no model {name!r}; {hint}")
