"""`doctor` and what it finds: problems of a model, with evidence measured on copies."""

from normscope.diagnosis.entry import doctor
from normscope.diagnosis.examination import Examination
from normscope.diagnosis.registry import CHECKS, check
from normscope.diagnosis.results import Diagnosis, Finding

__all__ = ["CHECKS", "Diagnosis", "Examination", "Finding", "check", "doctor"]
