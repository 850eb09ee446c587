"""Section 5.1, on data that are public: the Mayo Clinic's sequential labs of primary biliary cholangitis."""

from dataclasses import replace
from importlib.resources import files

from bbvi.study.patients import Patients
from bbvi.study.read_csv import read_csv

SOURCE = (
    "Mayo Clinic trial of primary biliary cholangitis, sequential data: pbcseq of the R package survival "
    "(T. Therneau, LGPL >= 2)"
)
SHA256 = "4bebbd2336ef30728a052f5330bb0bcdfd95fc38bd5f140389c98dcea067516d"


def load_mayo() -> Patients:
    """Load all 312 patients in their units; divide by training medians after the split.

    Examples:
        >>> patients = load_mayo()
        >>> len(patients), sum(map(len, patients.labs)), patients.names[0]
        (312, 1945, 'bili')
    """
    path = files("bbvi.study") / "data" / "pbcseq_labs.csv"
    return replace(read_csv(str(path), patient="id", time="day", source=SOURCE), name="Mayo PBC")
